"""What bytes mean: no sockets, no files, no clocks, no Twisted.

In reading order: ``properties`` (a message's properties), ``record`` (a message in the commit log), ``scan`` (proves
many records at once), ``transfer`` (the HA channel), ``command`` (remoting frames), ``fastjson`` (Java's JSON),
``javahash`` (String.hashCode), ``delay`` (delay levels).
"""
