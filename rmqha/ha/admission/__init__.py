"""Who may connect to an HA port, and how much a connection may cost.

In reading order:

- ``allowlist``: which hosts and certificates may be slaves.
- ``throttle``: limits on bytes a second, for a master and for a slave.
- ``limits``: limits on connections, on memory and on log lines.
"""
