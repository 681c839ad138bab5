"""Unit tests of ``rmqha.broker.background``."""
