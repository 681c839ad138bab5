"""Unit tests of ``rmqha.broker``: no reactor, no sockets."""
