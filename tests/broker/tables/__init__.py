"""Unit tests of ``rmqha.broker.tables``."""
