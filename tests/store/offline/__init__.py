"""Unit tests of ``rmqha.store.offline``."""
