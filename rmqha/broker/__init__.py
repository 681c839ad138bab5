"""The broker: answers clients, and asks other brokers and name servers (spec/remoting.md).

In reading order:

- ``addresses``: the broker's own addresses, and its master's.
- ``interfaces``: what a broker needs of its node.
- ``tables/``: what a broker knows: topics, groups, offsets, clients, locks, counts.
- ``requests/``: the processors, each of which answers some request codes.
- ``runtimeinfo``: what a broker reports about itself.
- ``hastatus``: what it tells mqadmin 5.x of replication.
- ``background/``: what runs in the background: delayed messages, name servers, a slave's tables.
- ``wiring``: which processor answers which request, with the parts that it needs.
- ``brokerservice``: creates the parts above, connects them, and starts and stops them in order. No module above
  imports it.
"""
