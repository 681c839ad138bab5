"""What a broker runs in the background.

In reading order:

- ``held``: what counts only when our log is flushed up to a place.
- ``schedule``: delivers delayed messages when they are due.
- ``outerapi``: registers the broker with its name servers.
- ``ownaddress``: follows the address of brokerIP1's name.
- ``mastersearch``: finds a slave's master through the name servers.
- ``restarts``: whether a Java master has deleted a topic of which a queue starts again.
- ``slavesync``: copies the master's tables to a slave.
- ``confirmedsync``: a slave asks its master what is confirmed.
- ``waitingreads``: says what consumers cannot read yet, because it is not confirmed.
- ``timerindex``: which timer messages wait, and until when.
- ``timermessages``: delivers timer messages when they are due.
- ``timercheck``: keeps the check point of the master's timer messages, on a slave.
- ``batchtopics``: tells the store which topics have batch consume queues.
"""
