"""What is built from the log: consume queues and index.

In reading order:

- ``dispatchrequest``: what dispatch needs from one message.
- ``consumequeue``: consume queues, which say where each message of a queue is in the log.
- ``batchqueue``: batch consume queues of RocketMQ 5.x.
- ``queuetypes``: which topics have batch consume queues.
- ``index``: index files, which find messages by key.
- ``geometry``: how many slots and entries an index file has.
- ``queuetable``: all queues of a store.
- ``bulk``: makes units and keys of many messages at once.
- ``putnotes``: what puts tell dispatch of their messages.
- ``dispatch``: builds queues and index from the log.
- ``placing``: puts messages into their queues one by one.
- ``dispatchlines``: tells how far dispatch is.
- ``dispatchmark``: what the next start must build again.
- ``queueends``: where each queue ended at the last clean stop.
- ``replacing``: puts rebuilt queues and index in place of the old ones.
- ``rebuild``: builds queues and index from the log, without the order of its messages.
- ``derived``: opens, recovers and removes queues and index together.
"""
