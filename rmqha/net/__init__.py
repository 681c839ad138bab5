"""How addresses become connections: plain TCP, UNIX sockets and TLS.

In reading order:

- ``tls/``: TLS for the HA port and the remoting ports.
- ``endpoints``: parses addresses: ``host:port`` or a Twisted endpoint string.
"""
