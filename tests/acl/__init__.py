"""Unit tests of ``rmqha.acl``."""
