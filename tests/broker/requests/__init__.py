"""Unit tests of ``rmqha.broker.requests``."""
