"""The disk: a store as RocketMQ 4.9 lays it out (spec/store.md).

In reading order:

- ``errors``: what can be wrong with a store.
- ``interfaces``: the commit log as replication sees it, on a disk or in memory.
- ``smallfiles``: reads and replaces our small JSON files.
- ``nodefacts``: how a fact of a node is written and shown.
- ``nodestate``: the folder ``rmqha``: our own small files, state.json among them.
- ``keptsettings``: settings that were changed while the node ran.
- ``epochs``: which node wrote the log from where on, and whether the store was promoted.
- ``dledger``: recognizes a store of DLedger, which we do not read.
- ``log/``: the commit log: segments, recovery, flushing.
- ``derived/``: what is built from the log: consume queues and index.
- ``message``: what is put, and the result of a put.
- ``put``: the put path: checks, encoding, appending.
- ``putfigures``: how many puts had which result, and how long they took.
- ``putwaits``: what a put waits for before it is answered.
- ``storeputs``: the puts of an open store.
- ``removals``: moves old queues of an open store away, and removes them in a thread.
- ``readlimit``: where reads end, and who waits for that to change.
- ``reading``: reads messages by queue offset, key, id and time.
- ``retention``: deletes old segments.
- ``metadata``: topics.json and the other files of the config folder.
- ``deletions``: which topics were deleted, and where the log ended then.
- ``restarts``: of which topics a slave does not know whether its Java master has deleted them.
- ``timers``: timer messages of RocketMQ 5.x, and the check point of their delivery.
- ``popinflight``: messages that POP consumers of RocketMQ 5.x hold.
- ``tablesnapshots``: the tables as they were, by the log offset they belong to.
- ``clamping``: sets back offsets that are past the end of their queues.
- ``setback``: sets back what points into a log that loses its end.
- ``examining``: the names of a store's own files, its log, and what recovery would find in it.
- ``logopening``: opens the log of a locked store.
- ``logrecovery``: recovers the log of a store that is opened.
- ``opening``: how far the opening of a store is, and how to stop it.
- ``messagestore``: the facade: opens, owns and closes everything above.
- ``offline/``: for stores that no node of this process has open: reading, checking, repairing.
"""
