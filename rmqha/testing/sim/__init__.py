"""Simulates a master and its slaves, with their network, disks and clock, in one process. One seed, one run.

The code under test is the real one: the HA protocols and services, the commit log, recovery, flushing, puts and their
waits. Only the layers below it are replaced by memory. Queues and index are left out: no replica's answer depends on
them.

In reading order:

- ``disk``: a disk in memory, with a page cache that can be lost.
- ``process``: a process that can die at any moment.
- ``network``: a network in memory.
- ``nodes``: masters and slaves that run on these.
- ``oracle``: checks what must hold after every step.
- ``simulation``: a whole cluster, scripted step by step.
- ``walk``: chooses the steps at random, from a seed.
- ``runner``: runs many seeds.

``python -m rmqha.testing.sim --seeds A..B`` runs seeds, ``make soak`` runs them until it is interrupted.
"""
