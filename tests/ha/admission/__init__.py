"""Unit tests of ``rmqha.ha.admission``."""
