"""Checks that compare brokers with each other, and with what name servers say about them."""

from collections.abc import Iterator

from rmqha.kit.exitcodes import ExitCode
from rmqha.ops.doctor.facts import MASTER_ID, AskedBroker, Facts, ServerListing
from rmqha.ops.doctor.findings import Finding, failed, passed, skipped, warned
from rmqha.wire.brokerinfo import VERSION_KEY

FALL_BEHIND_BYTES = 256 << 20
DERIVED_SIZES = ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
SEGMENT = "mappedFileSizeCommitLog"
ONE_NODE = "only one node of this brokerName was asked"


def one_master(facts: Facts) -> Iterator[Finding]:
    """Each brokerName has one master."""
    for name, hosts in facts.by_broker_name().items():
        masters = [host for host in hosts if host.is_master or (host.role is None and host.broker_id == MASTER_ID)]
        listed = _listed_masters(facts, name)
        if len(masters) > 1:
            names = ", ".join(host.name for host in masters)
            advice = "stop the one that must not take messages, then rmqha rewind it: docs/runbook.md"
            yield failed(name, f"it has {len(masters)} masters, which take different messages: {names}", advice)
        elif masters:
            yield passed(name, f"its master is {masters[0].name}")
        elif listed:
            yield skipped(name, f"the registered master, {', '.join(listed)}, does not answer")
        else:
            yield warned(name, "no master of it is known: producers cannot send to it", "docs/runbook.md")


def _listed_masters(facts: Facts, name: str) -> list[str]:
    return sorted(
        {each.brokers[name][MASTER_ID] for each in facts.name_servers if MASTER_ID in each.brokers.get(name, {})}
    )


def lag(facts: Facts) -> Iterator[Finding]:
    """A slave is at most 256 MiB (haSlaveFallbehindMax) behind its master."""
    for name, hosts in facts.by_broker_name().items():
        masters = [host for host in hosts if host.is_master]
        slaves = [host for host in hosts if host.is_master is False]
        if len(masters) != 1 or masters[0].log_end is None:
            yield skipped(name, "it has not exactly one master that answers")
            continue
        yield from (_lag(masters[0], masters[0].log_end, slave) for slave in slaves)
        if not slaves:
            yield skipped(name, "no slave of it was asked")


def _lag(master: AskedBroker, end: int, slave: AskedBroker) -> Finding:
    if slave.log_end is None:
        return skipped(slave.name, "it does not say where its log ends")
    most = master.number("haSlaveFallbehindMax") or FALL_BEHIND_BYTES
    behind = max(0, end - slave.log_end)
    text = f"{behind} bytes behind {master.name}"
    if behind > most:
        return warned(slave.name, f"{text}, more than {most}", "look at the slave's log: is it copying?")
    return passed(slave.name, text)


def segment_size(facts: Facts) -> Iterator[Finding]:
    """All nodes of a brokerName have segments of one size."""
    for name, nodes in _sizes(facts, SEGMENT).items():
        yield _same(name, SEGMENT, nodes)


def file_sizes(facts: Facts) -> Iterator[Finding]:
    """All nodes of a brokerName have queue and index files of one size."""
    for key in DERIVED_SIZES:
        for name, nodes in _sizes(facts, key).items():
            yield _same(name, key, nodes)


def _sizes(facts: Facts, key: str) -> dict[str, dict[str, int | None]]:
    """The sizes of all nodes of each brokerName. Stores without a known brokerName belong to the only one there is."""
    found = {name: {host.name: host.number(key) for host in hosts} for name, hosts in facts.by_broker_name().items()}
    for store in facts.readable:
        name = store.broker_name or (next(iter(found)) if len(found) == 1 else "-")
        size = store.segment_size if key == SEGMENT else None
        size = store.queue_file_size if key == DERIVED_SIZES[0] else size
        found.setdefault(name, {})[store.name] = size if size is not None else store.number(key)
    return found


def _same(name: str, key: str, sizes: dict[str, int | None]) -> Finding:
    known = {node: size for node, size in sizes.items() if size}
    unknown = sorted(set(sizes) - set(known))
    if len(set(known.values())) > 1:
        text = f"{key} differs: " + ", ".join(f"{node} {size}" for node, size in sorted(known.items()))
        if key == SEGMENT:
            advice = "start the slave again on an empty store, with its master's size: a log cannot change its segments"
            return failed(name, text, advice)
        return warned(name, text, "give both the same size: otherwise neither can take over the other's folder")
    if unknown:
        return skipped(name, f"{key} is not known of {', '.join(unknown)}")
    if len(known) < 2:
        return skipped(name, ONE_NODE)
    return passed(name, f"{key} is {next(iter(known.values()))} on {len(known)} nodes")


def versions(facts: Facts) -> Iterator[Finding]:
    """All nodes of a brokerName have versions that fit together."""
    for name, hosts in facts.by_broker_name().items():
        known = {host.name: host.version for host in hosts if host.version is not None}
        unknown = [host.name for host in hosts if host.version is None]
        shown = ", ".join(f"{host.name} {_shown(host)}" for host in hosts)
        java = {host.version for host in hosts if host.version is not None and not host.is_ours}
        ours = {host.info.get(VERSION_KEY) for host in hosts if host.is_ours}
        if len(java) > 1 or len(ours) > 1:
            yield warned(name, f"versions differ: {shown}", "upgrade slaves first, then the master")
        elif unknown:
            yield skipped(name, f"the version of {', '.join(unknown)} is not known")
        elif len(known) < 2:
            yield skipped(name, f"{ONE_NODE}: {shown}")
        else:
            yield passed(name, shown)


def _shown(host: AskedBroker) -> str:
    if host.is_ours:
        return f"rmqha {host.info.get('rmqhaVersion', '')}".strip()
    return host.info.get("brokerVersionDesc", "?")


def name_servers(facts: Facts) -> Iterator[Finding]:
    """All name servers answer, and list the same brokers."""
    for each in facts.name_servers:
        if each.problem is not None:
            advice = "start it, or take it out of namesrvAddr"
            yield failed(each.address, f"this name server does not answer: {each.problem}", advice)
    answering = [each for each in facts.name_servers if each.problem is None]
    if len(answering) > 1:
        yield from _disagreements(answering)
    elif answering:
        yield skipped(answering[0].address, "only one name server answers: there is nothing to compare")


def _disagreements(servers: list[ServerListing]) -> Iterator[Finding]:
    keys = sorted({(name, number) for each in servers for name, table in each.brokers.items() for number in table})
    count = 0
    for name, number in keys:
        said = {each.address: each.brokers.get(name, {}).get(number) for each in servers}
        if len(set(said.values())) == 1:
            continue
        count += 1
        shown = "; ".join(f"{address} says {where or 'nothing'}" for address, where in said.items())
        text = f"name servers disagree about brokerId {number}: {shown}"
        if len(set(said.values()) - {None}) > 1:
            yield failed(name, text, "two brokers claim one place: stop the wrong one")
        else:
            advice = "look again in half a minute; then check that namesrvAddr of the broker names all name servers"
            yield warned(name, text, advice)
    if not count:
        yield passed(", ".join(each.address for each in servers), f"they list the same {len(keys)} brokers")


def registered(facts: Facts) -> Iterator[Finding]:
    """Name servers list each broker with the address that it registers."""
    servers = [each for each in facts.name_servers if each.problem is None]
    for host in facts.answering:
        name, number = host.broker_name, host.broker_id
        if not servers:
            yield skipped(host.name, "no name server is known, or none answers", "give --namesrv")
        elif name is None or number is None or host.address is None:
            yield skipped(host.name, "its brokerName, brokerId or address is not known")
        else:
            yield from (_registered(host, name, number, server) for server in servers)


def _registered(host: AskedBroker, name: str, number: int, server: ServerListing) -> Finding:
    listed = server.brokers.get(name, {}).get(number)
    if listed == host.address:
        return passed(host.name, f"{server.address} lists it as {listed}")
    if listed is not None:
        text = f"{server.address} lists {listed} as {name} {number}, not {host.address}"
        return failed(host.name, text, "two brokers claim one place, or brokerIP1 has changed: stop the wrong one")
    if host.judgement is not None and host.judgement.code != ExitCode.FINE:
        return skipped(
            host.name, f"{server.address} does not list it: a slave that does not follow leaves name servers"
        )
    text = f"{server.address} does not list it: clients do not find it"
    return warned(host.name, text, "look again in half a minute; check namesrvAddr of the broker, and its log")
