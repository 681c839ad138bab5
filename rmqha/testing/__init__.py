"""Doubles that our users' tests may use too.

``memory`` is a commit log without a disk, ``records`` makes logs to measure, ``nodes`` runs nodes as
processes, ``proxy`` is a network with faults.
"""
