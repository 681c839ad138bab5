"""Fuzzing what reads a stranger's bytes: the HA channel, records, and the small formats around them.

::

    python -m tests.fuzz --bytes 1e8 --seconds 60     so many bytes over all targets, or fail
    python -m tests.fuzz                              until Ctrl-C
    python -m tests.fuzz --guided                     the same, led by coverage (atheris)
    python -m tests.fuzz --target record --replay F   one input once more
    python -m tests.fuzz.stores --cases 20000         whole stores: damage anywhere, then starts and commands
    python -m tests.fuzz.broker --seeds 0..9          a whole broker: 200 connections, cut anywhere, some break off

Reading order: ``target`` (what a target is), ``channel``, ``records`` and ``texts`` (the targets: what must hold for
every input), ``mutation`` (inputs from seeds), ``measure`` (memory and work), ``engine`` (the seeded loop), ``guided``
(atheris). An input that a target failed on once stays in ``regressions`` for ever.
"""
