"""TLS for the HA and remoting ports.

In reading order: ``certificates`` (PEM files, names in certificates), ``gate`` (what every connection passes),
``permissive`` (a port for peers with and without TLS), ``endpoints`` (``TLSFiles``, and from it what listens and
connects).
"""
