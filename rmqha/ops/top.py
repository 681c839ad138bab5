"""What ``rmqha top`` shows: one row for each broker, ours or Java's, with rates since the look before."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime

from rmqha.kit.connecting import reason_of
from rmqha.ops.brokerstatus import status_in
from rmqha.ops.doctor.facts import read_float
from rmqha.ops.status import UNKNOWN
from rmqha.ops.ways import IWays
from rmqha.remoting.asking import ask_config, ask_runtime_info
from rmqha.remoting.protocol import call_once
from rmqha.settings.settings import BrokerRole
from rmqha.wire.brokerinfo import read_brokers
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient

MAX_BROKERS = 200
SILENT = "SILENT"
"""The state of a broker that does not answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """A broker. None stands for "not known". ``bytes_per_second`` is how fast its log has grown since the last look."""

    address: str
    broker_name: str | None = None
    role: str = UNKNOWN
    state: str = SILENT
    log_start: int | None = None
    log_end: int | None = None
    confirmed: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    bytes_per_second: float | None = None
    puts_per_second: float | None = None
    gets_per_second: float | None = None
    disk_used: float | None = None
    slaves: int | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The values by their names."""
        return {
            "address": self.address,
            "brokerName": self.broker_name,
            "role": self.role,
            "state": self.state,
            "min": self.log_start,
            "end": self.log_end,
            "confirmed": self.confirmed,
            "lagBytes": self.lag_bytes,
            "lagSeconds": self.lag_seconds,
            "bytesPerSecond": self.bytes_per_second,
            "putsPerSecond": self.puts_per_second,
            "getsPerSecond": self.gets_per_second,
            "diskUsed": self.disk_used,
            "slaves": self.slaves,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class _Known:
    """What does not change while a broker runs, and where its log ended at the last look."""

    config: Mapping[str, str] = field(default_factory=dict)
    seen_at: float | None = None
    log_end: int | None = None


class Top:
    """Looks at brokers again and again."""

    def __init__(
        self,
        ways: IWays,
        clock: IReactorTime,
        hosts: Sequence[str],
        name_servers: Sequence[str] = (),
        over_tls: bool = False,
    ) -> None:
        """With ``name_servers``, all brokers that the first answering one lists are looked at too, with ``over_tls`` by
        TLS.
        """
        self._ways = ways
        self._clock = clock
        self._hosts = list(hosts)
        self._name_servers = list(name_servers)
        self._scheme = "tls:" if over_tls else ""
        self._listed: list[str] = []
        self._known: dict[str, _Known] = {}
        self.problem: str | None = None
        """Why no name server says which brokers there are. The brokers that were listed last are shown then."""

    async def look(self) -> list[Row]:
        """The present rows. All brokers are asked at the same time, and each request has a time limit."""
        await self._list()
        addresses = list(dict.fromkeys([*self._hosts, *self._listed]))[:MAX_BROKERS]
        asking = [Deferred.fromCoroutine(self._row(address)) for address in addresses]
        return with_lag(await gatherResults(asking, consumeErrors=True))

    async def _list(self) -> None:
        for address in self._name_servers:
            try:
                answer = await call_once(self._ways.to(address), RequestCode.GET_BROKER_CLUSTER_INFO, self._clock)
                brokers = read_brokers(loads_lenient(answer.body))
            except CancelledError:  # Ctrl-C
                raise
            except Exception as error:  # of any kind: the next one may answer
                self.problem = f"{address} does not answer: {reason_of(error)}"
                continue
            self._listed = [
                f"{self._scheme}{where}" for _, table in sorted(brokers.items()) for _, where in sorted(table.items())
            ]
            self.problem = None
            return

    async def _row(self, address: str) -> Row:
        known = self._known.get(address, _Known())
        try:
            way = self._ways.to(address)
            config = known.config or await ask_config(way, self._clock)
            info = await ask_runtime_info(way, self._clock)
            status = status_in(info, config)
        except CancelledError:
            raise
        except Exception as error:  # of any kind: it does not answer as it should
            self._known[address] = _Known()  # another one may answer next time
            return Row(address, known.config.get("brokerName"), problem=reason_of(error))
        node = status.node
        now, rate = self._clock.seconds(), None
        if known.seen_at is not None and known.log_end is not None and now > known.seen_at:
            rate = max(0, node.offsets.written - known.log_end) / (now - known.seen_at)
        self._known[address] = _Known(config, now, node.offsets.written)
        return Row(
            address,
            config.get("brokerName"),
            node.role,
            node.state,
            node.offsets.min,
            node.offsets.written,
            node.offsets.confirmed if status.is_ours else None,
            node.lag_bytes,
            node.lag_seconds,
            rate,
            _newest(info.get("putTps", "")),
            _newest(info.get("getTransferedTps", "")),
            read_float(info.get("commitLogDiskRatio", "")),
            len(node.peers) if status.is_ours else None,
            node.reason if node.role == BrokerRole.SLAVE.value and node.lag_bytes is None else None,
        )


def with_lag(rows: Iterable[Row]) -> list[Row]:
    """The rows by brokerName, the master first. A Java slave does not know its lag: it is what its master has more."""
    rows = list(rows)
    ends: dict[str | None, list[int]] = {}
    for row in rows:
        if row.role.endswith("MASTER") and row.log_end is not None:
            ends.setdefault(row.broker_name, []).append(row.log_end)
    found = []
    for row in rows:
        masters = ends.get(row.broker_name, [])
        is_java = row.confirmed is None and row.log_end is not None
        if row.role == BrokerRole.SLAVE.value and is_java and len(masters) == 1 and row.log_end is not None:
            row = replace(row, lag_bytes=max(0, masters[0] - row.log_end))
        found.append(row)
    return sorted(found, key=lambda row: (row.broker_name or "", not row.role.endswith("MASTER"), row.address))


def _newest(text: str) -> float | None:
    """The first of the numbers of a rate: that of the last seconds."""
    return read_float(text.split(" ")[0]) if text else None
