"""Finds the brokers of an address, and plans what is read of which node.

Slaves come first: nobody waits for them. A node that does not have the start of the log is not asked for
it: a new slave of Java has only the last segment.
"""

import logging
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import orjson

from rmqha.acl.credentials import make_signer
from rmqha.acl.yamlfile import AclFileError
from rmqha.pipeline.address import NetworkAddress, Place, RemoteLog, address_text, parse_address
from rmqha.pipeline.boundaries import start_before
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.network.asking import (
    ServedLog,
    ask_brokers,
    ask_consumer_offsets,
    ask_node,
    ask_unknown_topics,
)
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.pipeline.network.segment import NoNodeLeft
from rmqha.pipeline.options import Boundaries, Options
from rmqha.pipeline.plan import LogPlan, open_log
from rmqha.store.errors import DataLossError
from rmqha.store.log.splits import LogFile, Split
from rmqha.store.nodestate import NodeState

log = logging.getLogger(__name__)

NEAR_BYTES = 256 << 20
"""A slave that is further behind is not asked for the end of the log; haSlaveFallbehindMax of a master is the same."""
Asked = tuple[Place, int | None]
"""A remoting port, and the HA port if it is known."""


class NoAnswer(DataLossError):
    """No node of a broker answers."""


class Brokers:
    """The brokers of an address. The driver asks them again for each batch of a stream."""

    def __init__(self, options: Options) -> None:
        """Raises OptionError."""
        self._options = options
        self._address: NetworkAddress = parse_address(str(options.path))
        try:
            self._sign = make_signer(options.acl_file)
        except AclFileError as error:
            raise OptionError(f"aclFile: {error}") from error
        self._ends: dict[str, list[tuple[float, int]]] = {}
        self._brokers: dict[str, dict[int, Place]] | None = None
        self._said: dict[str, str] = {}
        self._topics = options.selection.topics or frozenset()
        """The selected topics, until the brokers were asked for them."""

    def plans(
        self,
        known_ends: Mapping[str, int],
        needed: Mapping[str, int] | None = None,
        away: MutableMapping[str, str] | None = None,
    ) -> list[LogPlan]:
        """The log of each broker, up to where it may be read.

        ``known_ends`` are ends at an earlier time, by brokerName, where records are known to end. Only nodes that have
        the log up to the offset in ``needed`` are asked for its end. With ``away``, a broker that cannot be read now is
        left out, and ``away`` gets its name and the reason; otherwise that is an error.

        Raises StoreError, OSError, OptionError.
        """
        found, masters = [], []
        asked = self._asked(away is not None)
        for name, nodes in asked.items():
            try:
                facts, master = self._facts(name, nodes)
                masters.append(master)
                broker = name or facts[0].broker
                least = 0 if needed is None else needed.get(broker, 0)
                found.append(self._plan(broker, facts, known_ends.get(broker, 0), least))
            except (NoAnswer, NodeFailed, NoNodeLeft) as error:
                if away is not None:
                    away[name] = str(error)
                elif self._options.fail_on_data_loss or not isinstance(error, NoAnswer):
                    raise
                self._warn(f"broker {name}", str(error))
        if self._topics and len(masters) == len(asked):
            self._warn_of_topics(masters)
        return found

    def _warn_of_topics(self, masters: Iterable[Place]) -> None:
        """Tell once which of the selected topics no broker has. Raises OptionError."""
        unknown, self._topics = self._topics, frozenset()
        for remoting in masters:
            try:
                unknown = ask_unknown_topics(remoting, sorted(unknown), self._options.access.tls, self._sign)
            except NodeFailed:  # its account may read no more than the log, for example: then nobody knows
                return
        if unknown:
            address, names = address_text(self._options.path), ", ".join(sorted(unknown))
            self._warn("topics", f"{address} has no topic {names}: no message may be of it")

    def consumer_offsets(self, broker: str) -> bytes:
        """The JSON of the offsets that consumers have reached at a broker, from its master if that answers: a slave
        has them some seconds later. Raises NodeFailed, OptionError, OSError.
        """
        tls, failures = self._options.access.tls, []
        for name, nodes in self._asked(False).items():
            found: list[tuple[int, Place]] = []
            for remoting, ha_port in nodes if name in ("", broker) else ():
                try:
                    found.append((ask_node(remoting, ha_port, tls, self._sign).node.broker_id, remoting))
                except NodeFailed as error:
                    failures.append(str(error))
            for _, remoting in sorted(found, key=lambda one: one[0]):
                try:
                    return ask_consumer_offsets(remoting, tls, self._sign)
                except NodeFailed as error:
                    failures.append(str(error))
        raise NodeFailed(f"no node of {broker} tells the offsets of consumers: {'; '.join(failures)}")

    def _warn(self, about: str, problem: str) -> None:
        """A stream asks often: it says the same only once in a row."""
        if self._said.get(about) != problem:
            log.warning("%s", problem)
        self._said[about] = problem

    def _asked(self, may_be_old: bool) -> dict[str, list[Asked]]:
        """The nodes to ask, by brokerName; an empty name stands for one that the nodes will tell.

        With ``may_be_old``, the last answer counts if no name server answers now.
        """
        address = self._address
        if address.name_servers:
            try:
                self._brokers = ask_brokers(address.name_servers, address.cluster, self._options.access.tls)
                self._said.pop("name servers", None)
            except NodeFailed as error:
                if self._brokers is None or not may_be_old:
                    raise
                self._warn("name servers", str(error))
            return {name: [(place, None) for place in places.values()] for name, places in self._brokers.items()}
        return {
            "": [(Place(place.host, address.remoting_port or place.port - 1), place.port) for place in address.nodes]
        }

    def _facts(self, name: str, nodes: Iterable[Asked]) -> tuple[list[ServedLog], Place]:
        """What the nodes of a broker say, those that are asked first in front, and the remoting port of the one with
        the lowest id. Raises NoAnswer, OptionError.
        """
        found, places, failures = [], {}, []
        for remoting, ha_port in nodes:
            try:
                found.append(ask_node(remoting, ha_port, self._options.access.tls, self._sign))
                places[found[-1].node.broker_id] = remoting
            except NodeFailed as error:
                failures.append(str(error))
        if not found:
            failures += self._remoting_hints()
            raise NoAnswer(f"no node of {name or 'the broker'} answers: {'; '.join(failures)}")
        self._said.pop(f"broker {name}", None)
        if failures:
            self._warn(f"nodes of {name}", "; ".join(failures))
        else:
            self._said.pop(f"nodes of {name}", None)
        names = {facts.broker for facts in found}
        if len(names) > 1:
            raise OptionError(
                f"{address_text(self._options.path)} names nodes of several brokers: {', '.join(sorted(names))}"
            )
        found.sort(key=lambda facts: (not facts.is_slave, -_end(facts, self._options), facts.node.broker_id))
        return found, places[min(places)]

    def _remoting_hints(self) -> list[str]:
        """What to give instead of an address whose port is a remoting port, where a HA port should be."""
        access, found = self._options.access, []
        for place in self._address.nodes if self._address.remoting_port is None else ():
            with suppress(NodeFailed):
                node = ask_node(place, None, access.tls, self._sign).node
                remoting = "" if node.place.port == place.port + 1 else f"?remoting={place.port}"
                found.append(f"{place} is a remoting port: give the HA port, rmqha://{node.place}{remoting}")
        return found

    def _plan(self, broker: str, facts: list[ServedLog], known_end: int, needed: int) -> LogPlan:
        """Raises StoreError, OSError."""
        options = self._options
        furthest = max(_end(one, options) for one in facts)
        near = [one for one in facts if _end(one, options) >= max(needed, furthest - NEAR_BYTES)]
        if not near:
            raise NodeFailed(f"{broker} ends at {furthest}: no node that answers has its log up to {needed}")
        chosen = near[0]
        segments = list(_segments(facts, chosen))
        settled = self._settled(broker, chosen)
        files = []
        for base in segments:
            last = min(base + chosen.segment_size, chosen.limit)
            holders = [one.node for one in [*near, *facts] if one.start <= base and one.limit >= last]
            growing = [one.node for one in near if one.start <= base]  # a master that was asked before its slave
            nodes = tuple(dict.fromkeys([*holders, *growing] or [one.node for one in facts]))
            remote = RemoteLog(
                broker,
                nodes,
                chosen.limit,
                settled,
                options.access,
                start=segments[0],
                address=str(options.path),
                state=_kept_state(chosen.state),
            )
            files.append(LogFile(remote.path(), base, base + chosen.segment_size))
        plan = LogPlan(options.path, options.path, tuple(files), 0, chosen.state, options, broker)
        return replace(plan, end=self._end_of(plan, chosen, known_end))

    def _end_of(self, plan: LogPlan, chosen: ServedLog, known_end: int) -> int:
        """Where the last whole record ends that may be read. A slave's log may end inside a record."""
        end = _end(chosen, self._options)
        if chosen.state is not None and end == chosen.state.offsets.verified:
            return end
        for file in plan.files:
            if file.base < end < file.end and not file.base <= known_end <= end:
                hops = self._options.boundaries is Boundaries.HOP
                known_end = file.base if hops else start_before(file.split(file.base, end))
        return plan.whole_records(end, known_end)

    def _settled(self, broker: str, chosen: ServedLog) -> int:
        """Up to where the log is so old that no producer waits for it; waits until that is known once.

        Only of a node that takes our reports for a replica's this matters.
        """
        settling = chosen.node.settling_seconds
        if not settling:
            return 0
        now = time.monotonic()
        ends = self._ends.setdefault(broker, [])
        ends.append((now, chosen.limit))
        while len(ends) > 1 and ends[1][0] <= now - settling:
            del ends[0]
        since, end = ends[0]
        time.sleep(max(0.0, since + settling - now))  # nobody tells which producers wait: only time shows it
        return end


def _kept_state(state: NodeState | None) -> str | None:
    """What an archive needs of a node's state: who it is, and what is confirmed."""
    if state is None:
        return None
    kept = NodeState(state.store_id, state.epoch, state.epoch_start, offsets=state.offsets)
    return orjson.dumps(kept.as_json()).decode()


def state_of(remote: RemoteLog) -> NodeState | None:
    """The state of the node that was to be read, when that was planned."""
    return None if remote.state is None else NodeState.from_json(remote.state)


def plan_of_split(split: Split, options: Options) -> LogPlan:
    """The log that a remote split is a part of, as it was when the split was planned. No node is asked."""
    remote = RemoteLog.parse(split.path)
    size = split.segment_end - split.base
    files = tuple(LogFile(split.path, base, base + size) for base in range(remote.start, remote.limit, size))
    address = Path(remote.address)
    return LogPlan(address, address, files, remote.limit, state_of(remote), options, remote.broker)


def _end(facts: ServedLog, options: Options) -> int:
    """Where a node's log ends for readers: for a node of ours where ``readUpTo`` says."""
    if facts.state is None:
        return facts.limit
    allowed: int = getattr(facts.state.offsets, options.read_up_to.value)
    return min(facts.limit, allowed)


def _segments(facts: Iterable[ServedLog], chosen: ServedLog) -> Iterable[int]:
    """Where the segments start that some node has. A log starts with a segment."""
    return range(min(one.start for one in facts), chosen.limit, chosen.segment_size)


def check_offsets(options: Options, plans: Sequence[LogPlan]) -> None:
    """Raises OptionError if an offset is given, but there are the logs of several brokers."""
    given = [offset for offset in (options.starting_offset, options.ending_offset) if not isinstance(offset, str)]
    if given and len(plans) > 1:
        names = ", ".join(plan.name for plan in plans)
        raise OptionError(f"{given[0]} is an offset of one log, but there are those of {names}")


def open_logs(options: Options) -> list[LogPlan]:
    """The log of ``options.path``, or those of all its brokers, as they are now. Raises StoreError, OSError,
    OptionError.
    """
    return Brokers(options).plans({}) if options.is_remote else [open_log(options)]


def open_one(options: Options) -> LogPlan:
    """The log of ``options.path``, or that of its only broker. Raises StoreError, OSError, OptionError."""
    plans = open_logs(options)
    if len(plans) != 1:
        names = ", ".join(plan.name for plan in plans) or "none"
        raise OptionError(
            f"{address_text(options.path)} names {len(plans)} brokers ({names}): give one by rmqha://HOST:PORT"
        )
    return plans[0]
