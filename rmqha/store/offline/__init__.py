"""For stores that no node of this process has open.

In reading order:

- ``commands``: how commands on stores end, and the options that describe a store.
- ``findings``: what checking a log can find, and the words for it.
- ``comparing``: compares the bytes of two logs.
- ``storereader``: reads a store from outside, while a node may be writing it.
- ``lookup``: finds messages, and the lag of consumer groups.
- ``audit``: compares queues and index with the log.
- ``standins``: stands in for segment files that are missing or too short, for a repair.
- ``storerepair``: brings bad bytes back from another copy of the log.
- ``restore``: puts back the bytes that recovery has cut and kept.
- ``target``: finds the place in a log at which a restore ends.
- ``copying``: copies files, sharing their blocks where the file system can.
- ``newstore``: makes a new store in a folder that gets its name when it is complete.
- ``prefix``: copies the start of a store into a new one.
- ``fork``: finds the offset at which two logs part.
- ``rewind``: takes a store back to that offset.
- ``promote``: makes a slave's store a master's.
"""
