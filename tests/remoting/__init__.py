"""Unit tests of ``rmqha.remoting``."""
