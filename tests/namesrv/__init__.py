"""Unit tests of ``rmqha.namesrv``: no reactor, no sockets."""
