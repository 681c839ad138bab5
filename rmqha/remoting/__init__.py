"""RocketMQ's remoting protocol: requests and answers between clients, brokers and name servers (spec/remoting.md).

In reading order:

- ``protocol``: the protocol: requests and answers, from either end.
- ``calls``: the requests that this end sends, and their answers.
- ``rights``: what the peer of a connection may do.
- ``client``: a connection that is kept open, and reconnected when it is lost.
- ``header``: reads a request's header fields.
- ``budgets``: limits the memory that all connections of a port use together.
- ``networks``: which addresses count as one peer.
- ``turns``: cuts long work into slices, so that no request blocks the reactor.
- ``asking``: asks a broker about itself: its log, its settings, a node's state.
- ``registration``: the body of a broker's registration with a name server.
"""
