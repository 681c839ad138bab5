"""Unit tests of ``rmqha.store.log``."""
