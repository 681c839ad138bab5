"""The keys that a broker.conf may have: those that rmqha uses, and those that only Java's brokers use.

An unknown key is an error, which suggests the nearest known one. A Java key that rmqha does not use gives a warning. If
ignoring it would make the node less safe than its user wants, the node refuses to start. ``REFUSED`` and ``EFFECTS``
decide this for each key.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from rmqha.settings.settings import SETTING_KEYS, Settings, SettingsError, make_settings

JAVA_SETTINGS = Path(__file__).with_name("java_settings.txt")
"""The keys that Java's brokers know, one a line, each with the releases that know it."""
MIN_LIKENESS = 0.7
TLS_PREFIX = "tls."


@cache
def java_keys() -> frozenset[str]:
    """The keys that Java's brokers know, of 4.9 and 5."""
    lines = JAVA_SETTINGS.read_text("utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if line and not line.startswith("#"))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name of ``names`` that is most similar to ``name``, in upper or lower case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    found = get_close_matches(name.lower(), by_lower, 1, MIN_LIKENESS)
    return by_lower[found[0]] if found else None


def with_nearest(strange: Collection[str], names: Iterable[str]) -> str:
    """Unknown names as a text, each with the most similar known one, if there is one."""
    known = tuple(names)
    hints = [(name, nearest(name, known)) for name in strange]
    return ", ".join(name if hint is None else f"{name} (did you mean {hint}?)" for name, hint in hints)


def check_keys(properties: Mapping[str, str]) -> None:
    """Raises SettingsError if a key is known neither to rmqha nor to Java's brokers."""
    known = SETTING_KEYS | java_keys()
    strange = [key for key in properties if key not in known]
    if not strange:
        return
    by_tls = " (certificates are given by --tls-cert, --tls-key, --tls-ca)" if _any_tls(strange) else ""
    noun = "setting" if len(strange) == 1 else "settings"
    raise SettingsError(f"unknown {noun} {with_nearest(strange, known)}{by_tls}")


def _any_tls(keys: Iterable[str]) -> bool:
    return any(key.startswith(TLS_PREFIX) for key in keys)


def _is_true(text: str) -> bool:
    return text.lower() == "true"


def _is_given(text: str) -> bool:
    return bool(text)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A Java key whose effect rmqha does not have, for the values for which ``applies`` is true.

    With ``masters_only`` it does not matter for slaves.
    """

    applies: Callable[[str], bool]
    reason: str
    masters_only: bool = False


REFUSED = {
    "authenticationEnabled": Unsupported(
        _is_true, "rmqha has the access control of RocketMQ 4 only: set aclEnable=true"
    ),
    "authorizationEnabled": Unsupported(
        _is_true, "rmqha has the access control of RocketMQ 4 only: set aclEnable=true"
    ),
    "useTLS": Unsupported(
        _is_true, "use the address instead: --master=tls:HOST:PORT, and --tls-cert for our own ports"
    ),
    "enableControllerMode": Unsupported(
        _is_true, "rmqha does not support controllers: there could be two masters with the same name"
    ),
    "inBrokerContainer": Unsupported(_is_true, "rmqha runs one broker in a process"),
    "allAckInSyncStateSet": Unsupported(
        _is_true, "rmqha waits for a number of replicas: set inSyncReplicas instead", masters_only=True
    ),
    "enabledAppendPropCRC": Unsupported(
        _is_true, "rmqha's master writes no CRC of properties: Java would cut its records", masters_only=True
    ),
    "forceVerifyPropCRC": Unsupported(
        _is_true, "rmqha's master writes no CRC of properties: Java would cut its records", masters_only=True
    ),
    "storeType": Unsupported(
        lambda text: text not in ("", "default"), "rmqha keeps consume queues in files (storeType=default)"
    ),
    "messageStorePlugIn": Unsupported(_is_given, "rmqha has no tiered storage: retention would delete it all"),
    "readOnlyCommitLogStorePaths": Unsupported(_is_given, "rmqha keeps the log in one folder"),
}
"""A node does not start with these, because it would be less safe, durable or compatible than its user wants."""

EFFECTS = {
    "enableSlaveActingMaster": Unsupported(_is_true, "a slave does not act for a master that is gone"),
    "enableRemoteEscape": Unsupported(_is_true, "a slave does not act for a master that is gone"),
    "enableMultiDispatch": Unsupported(_is_true, "queues of light messages (LMQ) are not built"),
    "enableLmq": Unsupported(_is_true, "queues of light messages (LMQ) are not built"),
    "enableConsumeQueueExt": Unsupported(_is_true, "consume queues have no extension files"),
    "fetchNamesrvAddrByAddressServer": Unsupported(_is_true, "name servers are those of namesrvAddr alone"),
    "duplicationEnable": Unsupported(_is_true, "the log is dispatched as soon as it is verified"),
    "transientStorePoolEnable": Unsupported(_is_true, "puts are written to the page cache at once"),
    "rejectPullConsumerEnable": Unsupported(_is_true, "pulls are not refused"),
    "haMaxGapNotInSync": Unsupported(_is_given, "the limit of rmqha is haSlaveFallbehindMax"),
    "configBlackList": Unsupported(_is_given, "only the settings that rmqha can change at run time can be changed"),
}
"""A node starts with these, and logs what is different."""


def judge_keys(properties: Mapping[str, str], is_slave: bool) -> list[str]:
    """The warnings about keys that a node does not use. Raises SettingsError for keys that it must not ignore."""
    check_keys(properties)
    refused = _applying(REFUSED, properties, is_slave)
    if refused:
        raise SettingsError("; ".join(refused.values()))
    warned = _applying(EFFECTS, properties, is_slave)
    unused = sorted(properties.keys() - SETTING_KEYS - warned.keys())
    if unused:
        noun = "a setting" if len(unused) == 1 else "settings"
        return [*warned.values(), f"rmqha does not use {noun} of Java's broker: {', '.join(unused)}"]
    return list(warned.values())


def _applying(rules: Mapping[str, Unsupported], properties: Mapping[str, str], is_slave: bool) -> dict[str, str]:
    """The messages about keys whose values need more than rmqha does, by key."""
    return {
        key: f"{key}={properties[key].strip()}: {rule.reason}"
        for key, rule in rules.items()
        if rule.applies(properties.get(key, "").strip()) and not (rule.masters_only and is_slave)
    }


def parse_override(text: str) -> tuple[str, str]:
    """The key and the value of one ``--set``. Raises SettingsError."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise SettingsError(f"--set {text}: not of the form KEY=VALUE")
    return key.strip(), value


def store_settings(store: Path, properties: Mapping[str, str], overrides: Mapping[str, str]) -> Settings:
    """The settings for a command on the store in the folder ``store``, which replaces storePathRootDir.

    ``overrides`` win over ``properties``. A storePathCommitLog of ``properties`` is used only if its storePathRootDir
    is this folder too, because otherwise the store is a copy and has its own commit log. Raises SettingsError.
    """
    given = dict(properties)
    check_keys({**given, **overrides})
    if make_settings(given).store_path_root_dir.resolve() != store.resolve():
        given.pop("storePathCommitLog", None)
    return make_settings({**given, **overrides, "storePathRootDir": str(store)})
