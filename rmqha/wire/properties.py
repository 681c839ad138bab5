"""A message's properties as the commit log stores them (spec/store.md 3.4).

``name 0x01 value`` joined by ``0x02``. Writers up to 4.9.0 and from 5.2.0 on add one ``0x02`` at the end. We read both
styles, and write the one without it, as 4.9.3 does.
"""

from collections.abc import Mapping

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
WAIT_TRUE = f"{PROPERTY_SEPARATOR}WAIT{NAME_VALUE_SEPARATOR}true{PROPERTY_SEPARATOR}"
"""The default, which brokers do not store, between its separators."""


def parse_properties(stored: str) -> dict[str, str]:
    """Parse properties, in stored order. Empty names and empty values are dropped; of equal names the last one wins."""
    try:
        properties = dict([segment.split(NAME_VALUE_SEPARATOR, 1) for segment in stored.split(PROPERTY_SEPARATOR)])
    except ValueError:  # a segment without a value, or a trailing separator: rare, so it is checked one by one
        pass
    else:
        if "" not in properties and "" not in properties.values():
            return properties
    properties = {}
    for segment in stored.split(PROPERTY_SEPARATOR):
        name, separator, value = segment.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties


def property_in(stored: str, name: str) -> str | None:
    """The value of one property, as ``parse_properties`` would find it; None if it is missing."""
    _, found, rest = f"{PROPERTY_SEPARATOR}{stored}".rpartition(f"{PROPERTY_SEPARATOR}{name}{NAME_VALUE_SEPARATOR}")
    if not found:
        return None
    return rest.partition(PROPERTY_SEPARATOR)[0] or parse_properties(stored).get(name)


def format_properties(properties: Mapping[str, str]) -> str:
    """The stored form, without a trailing separator.

    Raises ValueError if it could not be read back: an empty name or value, or a separator inside them.
    """
    for name, value in properties.items():
        if not name or not value:
            raise ValueError(f"property {name!r}={value!r}: neither the name nor the value may be empty")
        if NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name + value:
            raise ValueError(f"property {name!r}={value!r} contains a separator byte, 0x01 or 0x02")
    return PROPERTY_SEPARATOR.join(f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items())
