"""Patterns of addresses, as in globalWhiteRemoteAddresses and whiteRemoteAddress (spec/remoting.md 13.3)."""

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import pairwise

Address = IPv4Address | IPv6Address
Matches = Callable[[Address], bool]
"""Whether an address matches a pattern."""
EVERYBODY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
MAX_PATTERN_CHARACTERS = 4096
BRACES = re.compile(r"(.*[.:])\{([^{}]*)\}")
V4_PARTS, V4_MOST = 4, 255
V6_PARTS, V6_MOST = 8, 0xFFFF


@lru_cache(maxsize=4096)
def address_of(host: str) -> Address | None:
    """The address of a peer, IPv4 also if it came as IPv6; None if it is not an address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def never(_: Address) -> bool:
    """What an empty pattern matches."""
    return False


def parse_pattern(text: str) -> Matches:
    """What decides whether an address matches the pattern. An empty pattern matches none. Raises ValueError."""
    text = text.strip()
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"an address pattern has more than {MAX_PATTERN_CHARACTERS} characters")
    if not text:
        return never
    if text in EVERYBODY:
        return lambda _: True
    braces = BRACES.fullmatch(text)
    try:
        if braces is not None:
            return _one_of([braces[1] + piece.strip() for piece in braces[2].split(",")])
        if "," in text:
            return _one_of([piece.strip() for piece in text.split(",")])
        if "*" in text or "-" in text:
            return _range(text)
        return _one_of([text])
    except ValueError:
        raise ValueError(f"{text!r} is not an address, a list or a range of addresses") from None


def _one_of(texts: list[str]) -> Matches:
    known = frozenset(map(ip_address, texts))
    return lambda address: address in known


def _range(text: str) -> Matches:
    """A range: some exact parts, then perhaps one part as LEAST-MOST, then parts that are *."""
    is_v6 = ":" in text
    parts, most, base, separator = (V6_PARTS, V6_MOST, 16, ":") if is_v6 else (V4_PARTS, V4_MOST, 10, ".")
    pieces = text.split(separator)
    if "" in pieces and is_v6:
        at = text.index("::")
        if text.count("::") != 1:
            raise ValueError(text)
        head, tail = (half.split(":") if half else [] for half in (text[:at], text[at + 2 :]))
        pieces = [*head, *["0"] * (parts - len(head) - len(tail)), *tail]
    if len(pieces) != parts:
        raise ValueError(text)
    bounds = [_bounds(piece.strip(), most, base) for piece in pieces]
    is_exact = [least == greatest for least, greatest in bounds]
    if any(later and not earlier for earlier, later in pairwise(is_exact)):
        raise ValueError(text)
    kind = IPv6Address if is_v6 else IPv4Address
    size = 2 if is_v6 else 1

    def matches(address: Address) -> bool:
        if not isinstance(address, kind):
            return False
        packed = address.packed
        numbers = [int.from_bytes(packed[at : at + size], "big") for at in range(0, len(packed), size)]
        return all(least <= number <= greatest for number, (least, greatest) in zip(numbers, bounds, strict=True))

    return matches


def _bounds(piece: str, most: int, base: int) -> tuple[int, int]:
    if piece == "*":
        return 0, most
    least, separator, greatest = piece.partition("-")
    numbers = [_number(least, base), _number(greatest, base) if separator else _number(least, base)]
    if not numbers[0] <= numbers[1] <= most:
        raise ValueError(piece)
    return numbers[0], numbers[1]


def _number(text: str, base: int) -> int:
    if not (text.isascii() and text.isalnum()):
        raise ValueError(text)
    return int(text, base)
