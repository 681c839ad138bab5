"""What a broker runs in the background.

In reading order:

- ``held``: what counts only when our log is flushed up to a place.
- ``schedule``: delivers delayed messages when they are due.
- ``outerapi``: registers the broker with its name servers.
- ``mastersearch``: finds a slave's master through the name servers.
- ``slavesync``: copies the master's tables to a slave.
- ``confirmedsync``: a slave asks its master what is confirmed.
- ``waitingreads``: says what consumers cannot read yet, because it is not confirmed.
- ``timercheck``: keeps the check point of a 5.x master's timer messages.
- ``laterfeatures``: warns of messages that only brokers of RocketMQ 5.x can handle.
"""
