"""Unit tests of ``rmqha.ha``: no reactor, no sockets; ``doubles`` has what they share."""
