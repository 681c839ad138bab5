"""The broker: answers clients, and asks other brokers and name servers (spec/remoting.md).

In reading order. The connection:

- ``remoting``: the protocol: requests and answers, from either end.
- ``remotingclient``: a connection that is kept open, and made again when it is lost.
- ``header``: reads a request's header fields.
- ``budgets``: limits the memory that all connections of a port use together.
- ``turns``: cuts long work into slices, so that no request blocks the reactor.

The tables of a broker:

- ``configmanager``: a table that is kept in a file of the config folder.
- ``topics``: the topics (topics.json).
- ``groups``: the consumer groups (subscriptionGroup.json).
- ``newnames``: limits how many groups and topics clients may create.
- ``offsets``: how far each consumer group has read.
- ``clients``: the connected producers and consumers, from their heartbeats.
- ``locks``: which consumer may read a queue in order.
- ``stats``: counts and rates of messages.

The processors, each of which answers some request codes:

- ``send``: stores messages.
- ``pull``: reads messages, and holds a pull until a message arrives.
- ``filters``: the tag expressions of consumers.
- ``query``: finds messages by key and by id.
- ``transaction``: transactions, and the checks of their state.
- ``admin``: requests of operators and their tools.
- ``runtimeinfo``: what a broker reports about itself.

What runs in the background:

- ``schedule``: delivers delayed messages when they are due.
- ``outerapi``: registers the broker with its name servers.
- ``registration``: the body of a registration.
- ``mastersearch``: finds a slave's master through the name servers.
- ``slavesync``: copies the master's tables to a slave.
- ``laterfeatures``: warns of messages that only brokers of RocketMQ 5.x can handle.

And where all of them meet:

- ``controller``: creates the parts above and connects them. A node has one; no module above imports it.
"""
