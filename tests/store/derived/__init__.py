"""Unit tests of ``rmqha.store.derived``."""
