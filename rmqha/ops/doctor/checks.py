"""All checks, in the order in which they are shown."""

from rmqha.ops.doctor import ofclusters, ofnodes
from rmqha.ops.doctor.facts import Facts
from rmqha.ops.doctor.findings import Check, CheckResult, Finding, Look


def _check(name: str, look: Look) -> Check:
    return Check(name, (look.__doc__ or name).strip().rstrip("."), look)


CHECKS = (
    _check("answers", ofnodes.answers),
    _check("state", ofnodes.state),
    _check("one-master", ofclusters.one_master),
    _check("lag", ofclusters.lag),
    _check("role", ofnodes.role),
    _check("sync-waits", ofnodes.sync_waits),
    _check("mode", ofnodes.mode),
    _check("addresses", ofnodes.addresses),
    _check("name-servers", ofclusters.name_servers),
    _check("registered", ofclusters.registered),
    _check("segment-size", ofclusters.segment_size),
    _check("file-sizes", ofclusters.file_sizes),
    _check("versions", ofclusters.versions),
    _check("clock", ofnodes.clock),
    _check("round-trip", ofnodes.round_trip),
    _check("disk", ofnodes.disk),
    _check("slots", ofnodes.slots),
    _check("open-files", ofnodes.open_files),
    _check("tls", ofnodes.tls),
    _check("kernel", ofnodes.kernel),
)


def examine(facts: Facts) -> list[tuple[Check, Finding]]:
    """The findings of all checks."""
    return [(check, finding) for check in CHECKS for finding in check.findings(facts)]


def has_failed(found: list[tuple[Check, Finding]]) -> bool:
    """Whether something must be changed."""
    return any(finding.verdict is CheckResult.FAIL for _, finding in found)
