"""Unit tests of ``rmqha.ha.slave``."""
