"""The byte formats: no sockets, no files, no clocks, no Twisted.

In reading order. The log:

- ``properties``: a message's properties.
- ``layout``: where each field of a record lies.
- ``record``: a message in the commit log.
- ``columns``: many records at once, as numpy columns.
- ``scanned``: what a scan of the log has found.
- ``scan``: proves many records at once.
- ``delay``: delay levels.
- ``timers``: timer messages of RocketMQ 5.
- ``topics``: names of topics that brokers and clients make.
- ``mixedtopics``: those in which messages of many topics lie.

The network:

- ``transfer``: the HA channel.
- ``command``: remoting commands and their frames.
- ``fastjson``: JSON as Java's fastjson reads and writes it.
- ``beans``: makes records of what ``fastjson`` has read.
- ``brokerinfo``: what brokers answer about themselves.
- ``requestfields``: header fields that clients send and brokers read.
- ``slavefields``: header fields of what slaves of ours ask a master of ours.
- ``subscription``: the tag expressions of consumers.
- ``heartbeat``: the enumerations in a consumer's heartbeat.
- ``offsettable``: tables of queue offsets between brokers and clients.
- ``batch``: the body of a batch of messages.
- ``sends/``: ordinary sends, all that one read brings.
- ``logunits``: what dispatch makes of ordinary messages of the log.

And for both:

- ``javahash``: Java's ``String.hashCode``.
- ``javahashes``: that of many strings at once.
- ``compiled``: which functions run: those of the compiled kernel (``_kernel.pyx``), or plain Python.
"""
