"""What a broker knows.

In reading order:

- ``configmanager``: a table that is kept in a file of the config folder.
- ``attributes``: the attributes of topics and groups that 5.x added.
- ``topics``: the topics (topics.json).
- ``groups``: the consumer groups (subscriptionGroup.json).
- ``newnames``: limits how many groups and topics clients may create.
- ``offsets``: how far each consumer group has read.
- ``deletedtopics``: the topics that were deleted (deletedTopics.json).
- ``brokertables``: topics, groups, offsets and deletions in one record.
- ``shares``: room that nobody can use up alone.
- ``filters``: the SQL92 filters of consumers.
- ``clients``: the connected producers and consumers, from their heartbeats.
- ``locks``: which consumer may read a queue in order.
- ``stats``: counts and rates of messages.
"""
