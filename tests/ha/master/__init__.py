"""Unit tests of ``rmqha.ha.master``."""
