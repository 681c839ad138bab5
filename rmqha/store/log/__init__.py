"""The commit log.

In reading order:

- ``lockfile``: the small file ``lock``.
- ``room``: how much room a disk has.
- ``mappedfile``: one segment, and the queue of all segments; the disk that they are on.
- ``derivedend``: how far queues and index are on the disk.
- ``commitlog``: the log, as bytes and as records.
- ``checkpoint``: the small file ``checkpoint``.
- ``stretches``: finds the damaged parts of a log.
- ``provedrecords``: reads the messages of a part of the log, many at a time.
- ``pagecache``: returns the page cache that a query has used.
- ``splits``: a part of a segment, and a segment that is open for reading without a node.
- ``records``: reads and proves the messages of a split.
- ``recovery``: finds the log's end after a stop.
- ``flush``: writes the log to the disk: fdatasync in a thread.
- ``groupcommit``: waits until an offset has been reached.
"""
