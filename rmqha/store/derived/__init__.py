"""What is built from the log: consume queues and index.

In reading order:

- ``dispatchrequest``: what dispatch needs from one message.
- ``consumequeue``: consume queues, which say where each message of a queue is in the log.
- ``index``: index files, which find messages by key.
- ``geometry``: how many slots and entries an index file has.
- ``bulk``: makes units and keys of many messages at once.
- ``dispatch``: builds queues and index from the log.
- ``queueends``: where each queue ended at the last clean stop.
- ``derived``: opens, recovers and removes queues and index together.
"""
