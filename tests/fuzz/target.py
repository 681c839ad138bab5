"""What a target is: a parser, inputs to begin with, and what must hold for every input."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from zlib import crc32


class Broken(AssertionError):
    """Something that must hold for every input does not hold for this one."""


class Field(NamedTuple):
    """A big-endian integer in an input: where, and of how many bytes."""

    at: int
    width: int


def no_fields(data: bytes, start: int) -> Sequence[Field]:
    """For formats without numbers of fixed width."""
    return ()


def no_repair(data: bytearray) -> None:
    """For formats without checksums."""


def no_forgery(data: bytearray, rng: Random) -> None:
    """For formats whose lengths depend on nothing."""


@dataclass(frozen=True)
class Shape:
    """What ``mutation`` knows of a format: how to change an input where it matters."""

    elements: Callable[[bytes], Sequence[int]]
    """Where the input's elements (frames, records, tokens) start, in order."""
    fields: Callable[[bytes, int], Iterable[Field]] = no_fields
    """The integers of the element that starts here; they may lie outside of a damaged input."""
    repair: Callable[[bytearray], None] = no_repair
    """Makes checksums and the like right again, so that a change gets past them."""
    forge: Callable[[bytearray, Random], None] = no_forgery
    """Sets a length wrong, and others so that all agree."""
    numbers: tuple[int, ...] = ()
    """Values at which the parser decides."""
    tokens: tuple[bytes, ...] = ()
    """Bytes that mean something in this format."""


@dataclass(frozen=True)
class Target:
    """A parser to be fuzzed. Everything in it is a function of the input alone, so that an input can be replayed."""

    name: str
    seeds: Callable[[Random], list[bytes]]
    """Sound inputs."""
    shape: Shape
    check: Callable[[bytes], int]
    """Holds the parser to its promises and returns how many bytes it read before its verdict.

    Raises Broken, or whatever the parser raises that it does not document.
    """
    parse: Callable[[bytes], object]
    """The parser alone: its memory and its work are measured."""
    weight: int
    """Its share of all bytes."""


def choices(data: bytes) -> Random:
    """Whatever a check decides by chance, it decides by the input."""
    return Random(crc32(data))


def require(holds: bool, promise: str, *details: object) -> None:
    """Raises Broken, which says what was promised."""
    if not holds:
        raise Broken(f"{promise}: {', '.join(repr(detail)[:200] for detail in details)}" if details else promise)
