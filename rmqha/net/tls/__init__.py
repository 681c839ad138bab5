"""TLS for the HA and remoting ports.

In reading order:

- ``certificates``: PEM files, and the names in a peer's certificate.
- ``gate``: what every TLS connection passes before its protocol sees a byte.
- ``permissive``: a port for clients with and without TLS.
- ``endpoints``: ``TLSFiles``, and what it makes: endpoints that listen and connect. ``TLSSources`` reads files again.
- ``addresses``: TLS addresses as Twisted's endpoint strings.
"""
