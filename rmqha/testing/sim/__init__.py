"""A master and its slaves, their network, disks and clock, in one process and by chance: the same seed, the same run.

The code that runs is the real one: the HA protocols and services, the commit log, recovery, flushing, puts and their
waits. Only what is below them is made of memory; queues and index, which no replica's answer depends on, are left out.

In reading order: ``disk``, ``process`` (which can die at any moment) and ``network`` are the world, ``nodes`` run in
it, ``oracle`` knows what must hold, ``simulation`` is scripted step by step and ``walk`` steps by chance.
``python -m rmqha.testing.sim --seeds A..B`` runs seeds, ``make soak`` runs them until it is told to stop.
"""
