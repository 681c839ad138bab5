"""The disk: a store as RocketMQ 4.9 lays it out (spec/store.md).

In reading order. The log:

- ``errors``: what can be wrong with a store.
- ``mappedfile``: one segment, and the queue of all segments.
- ``commitlog``: the log, as bytes and as records.
- ``checkpoint``: the small file ``checkpoint``.
- ``lockfile``: the small file ``lock``.
- ``nodestate``: the folder ``rmqha``: our own small files, state.json among them.
- ``dledger``: recognizes a store of DLedger, which we do not read.
- ``recovery``: finds the log's end after a stop.
- ``flush``: writes the log to the disk: fdatasync in a thread.
- ``groupcommit``: waits until an offset has been reached.

Damage and repair:

- ``stretches``: finds the damaged parts of a log.
- ``repair``: brings bad bytes back from another copy of the log.
- ``restore``: puts back the bytes that recovery has cut and kept.

Derived from the log:

- ``request``: what dispatch needs from one message.
- ``consumequeue``: consume queues: where each message of a queue lies in the log.
- ``index``: index files: messages by key.
- ``geometry``: how many slots and entries an index file has.
- ``dispatch``: builds queues and index from the log.
- ``bulk``: the same for many messages at once.
- ``queueends``: where each queue ended at the last clean stop.
- ``derived``: opens, recovers and removes queues and index together.

In and out:

- ``message``: what is put, and the result of a put.
- ``put``: the put path: checks, encoding, appending.
- ``putwaits``: what a put waits for before it is answered.
- ``reading``: reads messages by queue offset, key, id and time.
- ``retention``: deletes old segments.
- ``metadata``: topics.json and the other files of the config folder.

The whole:

- ``opening``: how far the opening of a store is, and how to stop it.
- ``messagestore``: the facade: opens, owns and closes everything above.
- ``reader``: reads a store from outside, while a node may be writing it.
- ``audit``: compares queues and index with the log.
"""
