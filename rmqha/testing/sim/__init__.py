"""Simulates a master and its slaves, with their network, disks and clock, in one process. One seed, one run.

The code under test is the real one: the HA protocols and services, and the whole ``MessageStore`` with its log, queues
and index. Only the network, the disk and the clock below it are replaced by memory. A simulated process may die at any
system call, and each call may fail. Two things have no system call: writes to the front of an index file go through a
mapping, and the table of delays is a real file. No process dies between two of those.

In reading order:

- ``disk``: a disk in memory, with a page cache that can be lost.
- ``process``: a process that can die at any moment.
- ``network``: a network in memory.
- ``nodes``: masters and slaves that run on these.
- ``peers``: masters and slaves that lie or hold back.
- ``violation``: the error that every check raises.
- ``audit``: checks queues, index and deliveries against the log.
- ``oracle``: checks what must hold after every step.
- ``rest``: whether slaves have come to rest.
- ``rotting``: disks whose bytes rot.
- ``strangers``: strangers join a simulation.
- ``kinds``: the kinds of messages that are put.
- ``simulation``: a whole cluster, scripted step by step.
- ``histories``: what clients asked and were answered, in a form that checkers of other people read.
- ``steps``: the steps at random that all stories have.
- ``walk``: chooses the steps at random, from a seed.
- ``failover``: a story from a seed: a master is lost, a slave is promoted, the old master is rewound and follows.
- ``coordinator``: a coordinator in memory, whose requests and answers are on their way in steps.
- ``clusternodes``: nodes with automatic failover.
- ``cluster``: a cluster of them with the coordinator: nobody but the nodes decides who leads.
- ``clusterwalk``: a story with that from a seed, with faults at any moment, and at chosen ones.
- ``coverage``: counts which events met which states.
- ``runner``: runs many seeds.

``python -m rmqha.testing.sim --seeds A..B`` runs seeds, ``make soak`` runs them until it is interrupted.
"""
