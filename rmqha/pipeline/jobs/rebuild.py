"""Builds consume queues and index from the log, by splits: see ``store.derived.rebuild``."""

from collections.abc import Callable
from contextlib import ExitStack

from rmqha.kit.progress import NO_BAR, IBar
from rmqha.pipeline.jobs.engine import Engine, WrongBoundary
from rmqha.pipeline.options import Boundaries, OnCorrupt, Options
from rmqha.pipeline.plan import open_log
from rmqha.store.derived.rebuild import OnSplit, Rebuilt, RebuiltSplit, Rules, Source, build
from rmqha.store.log.lockfile import LockFile
from rmqha.store.offline.newstore import check_place


def rules_of(options: Options) -> Rules:
    """How these options want the log to be read."""
    return Rules(options.settings, options.on_corrupt is OnCorrupt.SKIP, options.batch_bytes)


def rebuild(options: Options, engine: Engine, bar: IBar = NO_BAR) -> Rebuilt:
    """Build the queues and the index of the store ``options.path``, in place of its own or in ``options.output``.

    In place, nobody may have the store open. If the job fails or is interrupted, the store is unchanged. If it is
    killed while it replaces the files, the store is without queues; its node then builds them. Raises StoreError,
    OSError.
    """
    if options.output is not None:
        check_place(options.output)
    plan = open_log(options)
    with ExitStack() as held:
        if options.output is None:
            held.callback(LockFile(plan.store / "lock").release)
        start, end = plan.start(), plan.stop()

        def run(on_split: OnSplit, afresh: Callable[[], None]) -> list[RebuiltSplit]:
            try:
                return engine.run(on_split, plan.splits(start, end), bar)
            except WrongBoundary:  # splits with wrong boundaries have written wrong units
                afresh()
                return engine.run(on_split, plan.splits(start, end, Boundaries.HOP), bar)

        source = Source(plan.store, start, end, list(plan.pieces(start, end)), rules_of(options))
        return build(source, options.output or plan.store, run)
