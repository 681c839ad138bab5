"""Checks of each broker and each store by itself."""

from collections.abc import Iterator

from rmqha.kit.exitcodes import ExitCode
from rmqha.ops.doctor.facts import MASTER_ID, AskedBroker, Facts, Store, Subject
from rmqha.ops.doctor.findings import Finding, failed, passed, skipped, warned
from rmqha.ops.process import MAX_FILES
from rmqha.remoting.calls import ACL_EXCEPTION
from rmqha.settings.settings import BrokerRole
from rmqha.store.retention import DISK_SPACE_WARNING_RATIO
from rmqha.wire.compiled import FINE_IMPLEMENTATIONS

FEW_FILES = 4096
MAX_FILES_RATIO = 0.9
DEFAULT_DISK_MAX_USED = 75
DEFAULT_SEGMENT = 1 << 30
FREE_SEGMENTS = 3
DEFAULT_SLAVE_TIMEOUT_MS = 3000
SMALL_RATE = 1 << 20
MODES = {
    "enableDLegerCommitLog": "DLedger mode has its own replication",
    "enableControllerMode": "controller mode has its own replication",
}


def _nodes(facts: Facts) -> list[Subject]:
    return [*facts.answering, *facts.readable]


def answers(facts: Facts) -> Iterator[Finding]:
    """Each broker answers on its remoting port, and each store can be read."""
    for host in facts.hosts:
        if host.problem is None:
            yield passed(host.name, "it answers")
        else:
            advice = "start the broker, or correct the address: it is the listenPort, 10911 by default"
            if ACL_EXCEPTION in host.problem:
                advice = "it runs, and has accounts: give one of them with --acl-file (docs/acl.md)"
            yield failed(host.name, f"it does not answer: {host.problem}", advice)
    for store in facts.stores:
        if store.problem is None:
            yield passed(store.name, "it can be read")
        else:
            yield failed(store.name, store.problem, "give the storePathRootDir of a node, as a user who may read it")
    if facts.left_out:
        yield skipped("-", f"{facts.left_out} more brokers are registered, and were not asked")


def state(facts: Facts) -> Iterator[Finding]:
    """A node of ours runs and, if it is a slave, follows its master. It warns of nothing."""
    for node in _nodes(facts):
        judgement = node.judgement
        if judgement is None:
            reason = (
                "Java's brokers do not say it" if isinstance(node, AskedBroker) else "no node of ours has run on it"
            )
            yield skipped(node.name, reason)
        elif judgement.code is ExitCode.FINE:
            yield passed(node.name, judgement.state)
        else:
            yield failed(node.name, judgement.reason, "docs/runbook.md says what to do in each state")
        for warning in () if judgement is None else judgement.warnings:
            yield warned(node.name, warning, "docs/runbook.md says what to do about warnings")


def role(facts: Facts) -> Iterator[Finding]:
    """A slave has a brokerId above 0, and a master has 0."""
    for node in _nodes(facts):
        role, broker_id = node.role, node.broker_id
        if role is None or broker_id is None:
            yield skipped(node.name, "its brokerRole and brokerId are not known", _give_conf(node))
        elif role is BrokerRole.SLAVE and broker_id == MASTER_ID:
            text = "it is a SLAVE with brokerId 0: name servers show it as the master, and producers send to it"
            yield failed(node.name, text, "set brokerId to 1 or more, and restart it")
        elif role is not BrokerRole.SLAVE and broker_id != MASTER_ID:
            text = f"it is a {role.value} with brokerId {broker_id}: producers do not find it"
            yield failed(node.name, text, "set brokerId to 0, and restart it")
        else:
            yield passed(node.name, f"{role.value} with brokerId {broker_id}")


def _give_conf(node: Subject) -> str:
    return "give --conf with its broker.conf" if isinstance(node, Store) else ""


def sync_waits(facts: Facts) -> Iterator[Finding]:
    """A SYNC_MASTER answers SEND_OK only when a slave has the message."""
    for node in _nodes(facts):
        role = node.role
        if role is None:
            yield skipped(node.name, "its brokerRole is not known", _give_conf(node))
        elif role is BrokerRole.SYNC_MASTER:
            yield _waits(node)


def _waits(node: Subject) -> Finding:
    replicas = node.number("inSyncReplicas")
    if node.says("allAckInSyncStateSet"):
        return passed(node.name, "it waits for all slaves of its in-sync set")
    if replicas is None and "inSyncReplicas" not in node.config:
        if isinstance(node, AskedBroker) and node.version is not None and node.version[0] <= 4:
            return passed(node.name, "RocketMQ 4 always waits for a slave")
        return skipped(node.name, "its inSyncReplicas is not known")
    if replicas is None:
        return skipped(node.name, f"its inSyncReplicas is not a number: {node.config['inSyncReplicas'][:40]}")
    if replicas < 2:
        text = (
            f"it is a SYNC_MASTER with inSyncReplicas={replicas}: it answers SEND_OK before any slave has the message"
        )
        return failed(node.name, text, "set inSyncReplicas=2. The default of RocketMQ 5 is 1")
    return passed(node.name, f"inSyncReplicas={replicas}")


def mode(facts: Facts) -> Iterator[Finding]:
    """A broker replicates with RocketMQ's HA protocol, which slaves of ours speak."""
    for node in _nodes(facts):
        bad = [f"{key}=true: {why}" for key, why in MODES.items() if node.says(key)]
        if bad:
            yield failed(node.name, "; ".join(bad), "rmqha cannot copy this broker")
        elif node.is_ours or "enableDLegerCommitLog" in node.config:
            yield passed(node.name, "it uses the HA protocol")
        elif isinstance(node, Store) and node.segment_size is not None:
            yield passed(node.name, "it has a commit log")
        else:
            yield skipped(node.name, "its settings are not known", _give_conf(node))


def addresses(facts: Facts) -> Iterator[Finding]:
    """The addresses that a broker registers (brokerIP1, brokerIP2) take connections from here."""
    for host in facts.answering:
        yield _reachable(facts, host, host.address, "clients", "brokerIP1")
        if host.is_master:
            yield _reachable(facts, host, host.ha_address, "slaves", "brokerIP2")


def _reachable(facts: Facts, host: AskedBroker, address: str | None, whose: str, key: str) -> Finding:
    if address is None:
        return skipped(host.name, f"it does not say which address it registers for {whose}")
    if address not in facts.connects:
        return skipped(host.name, f"{address}, the address for {whose}, was not tried")
    problem = facts.connects[address]
    advice = f"set {key} to an address of this broker that the other machines reach"
    if problem is not None:
        return failed(host.name, f"it registers {address} for {whose}, which cannot be reached: {problem}", advice)
    if is_loopback(address) and not is_loopback(host.name):
        return failed(host.name, f"it registers {address} for {whose}: a loopback address", advice)
    if is_loopback(address):
        return passed(host.name, f"{address} for {whose}; only this machine reaches it")
    return passed(host.name, f"{address} for {whose}")


def is_loopback(address: str) -> bool:
    """Whether only the same machine reaches this address, HOST:PORT, perhaps after ``tls:``."""
    host = address.removeprefix("tls:").rpartition(":")[0].strip("[]").lower()
    return host in ("localhost", "::1") or host.startswith("127.")


def tls(facts: Facts) -> Iterator[Finding]:
    """Ports use TLS."""
    for host in facts.answering:
        if not host.given:
            continue
        if host.over_tls:
            yield passed(host.name, "its remoting port uses TLS")
        else:
            text = "its remoting port answers without TLS: everyone who reaches it can read and send messages"
            yield warned(host.name, text, "docs/tls.md; else keep the port on a network that you trust")
        if not host.is_ours:
            text = "the HA port of a Java broker is always plain: everyone who reaches it can read the log"
            yield warned(host.name, text, "keep the HA port on a network that you trust")
        else:
            yield skipped(host.name, "whether its HA port uses TLS cannot be seen without sending bytes to it")


def clock(facts: Facts) -> Iterator[Finding]:
    """A broker's clock is within 2 seconds of this machine's."""
    for host in facts.answering:
        if host.clock_ahead is None:
            yield skipped(host.name, "it does not say what time it is")
            continue
        least, most = host.clock_ahead
        distance = max(least, -most, 0.0)
        if distance <= 2.0:
            yield passed(host.name, "its clock agrees with this machine's, to a second or two")
            continue
        text = f"its clock is {distance:.0f} s {'ahead of' if least > 0 else 'behind'} this machine's"
        advice = "synchronise both clocks: delays, retention and certificates depend on them"
        yield (failed if distance > 300 else warned)(host.name, text, advice)


def round_trip(facts: Facts) -> Iterator[Finding]:
    """The way to a broker is short enough for its socket buffers: a slave on this machine could keep up."""
    for host in facts.answering:
        if host.round_trip is None or facts.receive_buffer is None:
            yield skipped(host.name, "the time of a request, or the size of this machine's buffers, is not known")
        elif host.is_master is not False:
            yield _round_trip(host, host.round_trip, facts.receive_buffer)


def _round_trip(host: AskedBroker, seconds: float, buffer: int) -> Finding:
    in_flight = host.number("haMaxBytesInFlight")
    window = min(buffer, in_flight) if in_flight else buffer
    rate, wanted = window / max(seconds, 1e-6), host.put_bytes_per_second
    text = f"a request takes {seconds * 1000:.1f} ms; with {window} bytes on the way this allows {_rate(rate)}"
    advice = "make net.ipv4.tcp_rmem and tcp_wmem larger on both machines, and haMaxBytesInFlight if it is set"
    timeout = host.number("slaveTimeout") or DEFAULT_SLAVE_TIMEOUT_MS
    if host.role is BrokerRole.SYNC_MASTER and 2 * seconds * 1000 > timeout:
        advice = "make slaveTimeout larger, or use an ASYNC_MASTER over this distance"
        return failed(host.name, f"a request takes {seconds * 1000:.0f} ms, and slaveTimeout is {timeout} ms", advice)
    if wanted is not None and rate < wanted:
        return failed(host.name, f"{text}, and the log grows by {_rate(wanted)}", advice)
    if rate < SMALL_RATE or (wanted is not None and rate < 2 * wanted):
        return warned(host.name, f"{text}: a slave hardly catches up", advice)
    return passed(host.name, text)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 2**20:.1f} MiB/s"


def disk(facts: Facts) -> Iterator[Finding]:
    """The disk of a log has room: it is below diskMaxUsedSpaceRatio, and three more segments fit."""
    for host in facts.answering:
        segment = host.number("mappedFileSizeCommitLog")
        yield _disk(host, host.used_ratio, host.free_bytes, segment)
    for store in facts.readable:
        yield _disk(store, store.used_ratio, store.free_bytes, store.segment_size)


def _disk(node: Subject, used: float | None, free: int | None, segment: int | None) -> Finding:
    if used is None:
        return skipped(node.name, "how full its disk is is not known")
    segment = segment or DEFAULT_SEGMENT
    most = (node.number("diskMaxUsedSpaceRatio") or DEFAULT_DISK_MAX_USED) / 100
    room = "" if free is None else f", {free / 2**30:.1f} GiB free"
    text = f"{used:.0%} of the disk are used{room}"
    if used >= DISK_SPACE_WARNING_RATIO:
        return failed(
            node.name, f"{text}: at 90 % a broker refuses messages", "make room, or set fileReservedTime lower"
        )
    if free is not None and free < segment:
        return failed(node.name, f"{text}: less than the next segment of {segment} bytes", "make room")
    if used >= most:
        text = f"{text}: above diskMaxUsedSpaceRatio ({most:.0%}) a broker deletes old segments at any hour"
        return warned(node.name, text, "make room, or set fileReservedTime lower")
    if free is not None and free < FREE_SEGMENTS * segment:
        return warned(node.name, f"{text}: less than {FREE_SEGMENTS} segments of {segment} bytes", "make room")
    return passed(node.name, text)


def slots(facts: Facts) -> Iterator[Finding]:
    """The log that is kept for slaves (--hold) is smaller than the free room of its disk."""
    for host in facts.answering:
        if host.is_ours:
            advice = "run rmqha doctor with the store's folder, on the machine of the node"
            yield skipped(host.name, "slots are files in the store's folder", advice)
    for store in facts.readable:
        if store.slots is None:
            yield failed(store.name, str(store.slots_problem), "correct the file, or delete it if its slave is gone")
        elif not store.slots:
            yield passed(store.name, "nothing is kept for slaves")
        else:
            yield from (_slot(store, slot.name, slot.offset) for slot in store.slots)


def _slot(store: Store, name: str, offset: int) -> Finding:
    if store.log_end is None or store.free_bytes is None:
        return skipped(store.name, f"how much the slot {name} keeps is not known")
    kept = max(0, store.log_end - offset)
    text = f"the slot {name} keeps the log from {offset} on: {kept / 2**30:.2f} GiB"
    advice = (
        f"start that slave again, or delete {store.name}/rmqha/slots/{name}.json if it never comes back; "
        "--max-hold-bytes limits what is kept"
    )
    if kept > store.free_bytes:
        return warned(store.name, f"{text}, more than is free on the disk", advice)
    return passed(store.name, text)


def open_files(facts: Facts) -> Iterator[Finding]:
    """A node may open as many files as it needs: at least 4096."""
    for host in facts.answering:
        yield skipped(host.name, "the limit of another process is only seen with its store, on its machine")
    for store in facts.readable:
        yield _open_files(store)


def _open_files(store: Store) -> Finding:
    files = store.open_files
    advice = f"set LimitNOFILE={MAX_FILES} in its unit, or ulimit -n {MAX_FILES}"
    if files is None:
        return skipped(store.name, "its process is not visible here: run this as the node's user, or as root")
    if files.used is not None and files.used > files.limit * MAX_FILES_RATIO:
        return failed(store.name, f"{files.used} of at most {files.limit} files are open", advice)
    whose = "" if files.used is not None else "; the node does not run: this is the limit of this shell"
    text = f"at most {files.limit} open files{whose}"
    if files.limit < FEW_FILES:
        return warned(store.name, f"{text}: a broker with many queues needs more", advice)
    return passed(store.name, text)


def kernel(facts: Facts) -> Iterator[Finding]:
    """The compiled kernel of this machine can be used, or there is none: plain Python does the same, but slower."""
    for host in facts.answering:
        yield skipped(host.name, "what another process runs is in its metric rmqha_build_info")
    for store in facts.readable:
        text = f"a node that starts here runs {store.implementation}"
        if store.implementation is None:
            yield skipped(store.name, "what runs here is not known")
        elif store.implementation in FINE_IMPLEMENTATIONS:
            yield passed(store.name, text)
        else:
            yield warned(store.name, text, "install rmqha again: docs/install.md")
