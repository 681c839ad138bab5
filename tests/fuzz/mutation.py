"""Inputs made from sound ones: spoilt anywhere, and in those places that a format's shape names."""

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

from tests.fuzz.target import Field, Shape, no_fields, no_forgery

MAX_INPUT_BYTES = 256 * 1024
WIDTHS = (1, 2, 4, 8)

Change = Callable[[bytearray, Random, Shape, Sequence[bytes]], None]


def mutate(data: bytes, rng: Random, shape: Shape, others: Sequence[bytes]) -> bytes:
    """A changed input; rarely, the same. ``others`` lend their parts."""
    changed = bytearray(data)
    for _ in range(min(8, 1 + int(rng.expovariate(0.7)))):
        rng.choice(changes_for(shape))(changed, rng, shape, others)
    if rng.random() < 0.5:
        shape.repair(changed)
    return bytes(changed[:MAX_INPUT_BYTES])


def _flip_a_bit(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_a_byte(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _set_a_number_anywhere(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    _set_field(data, Field(rng.randrange(len(data) + 1), rng.choice(WIDTHS)), rng, shape)


def _set_a_field(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    if fields := _fields_of_an_element(data, rng, shape):
        _set_field(data, rng.choice(fields), rng, shape)


def _move_bytes_between_fields(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    """One length grows by what another loses: their sum stays right."""
    fields = _fields_of_an_element(data, rng, shape)
    if len(fields) >= 2:
        first, second = rng.sample(fields, 2)
        by = rng.choice((1, 2, 3, 4, 12, 24, rng.randrange(200)))
        _write(data, first, _read(data, first) + by)
        _write(data, second, _read(data, second) - by)


def _grow_fields_together(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    """One length grows as another does: the one may be the other's sum."""
    fields = _fields_of_an_element(data, rng, shape)
    if len(fields) >= 2:
        by = rng.choice((-12, -1, 1, 2, 12, 24))
        for field in rng.sample(fields, 2):
            _write(data, field, _read(data, field) + by)


def _forge(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    shape.forge(data, rng)


def _truncate(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _lose_the_end(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    del data[max(0, len(data) - rng.randrange(1, 10)) :]


def _drop_a_range(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, 100))]


def _insert_bytes(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100))) if rng.random() < 0.5 else bytes(rng.randrange(1, 12))


def _insert_a_token(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    at = rng.choice([*shape.elements(bytes(data)), rng.randrange(len(data) + 1)])
    data[at:at] = rng.choice(shape.tokens)


def _put_a_token_behind_a_sign(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    start, end = _some_elements(data, rng, shape)
    data[start + 1 : end] = rng.choice(shape.tokens)


def _drop_elements(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    start, end = _some_elements(data, rng, shape)
    del data[start:end]


def _repeat_elements(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    start, end = _some_elements(data, rng, shape)
    data[start:start] = data[start:end] * rng.choice((1, 1, 2, 5))


def _take_elements_of_another(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    start, end = _some_elements(other, rng, shape)
    at, _ = _some_elements(data, rng, shape)
    data[at:at] = other[start:end]


def _splice(data: bytearray, rng: Random, shape: Shape, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


ANYWHERE = (_flip_a_bit, _set_a_byte, _set_a_number_anywhere, _truncate, _lose_the_end, _drop_a_range, _insert_bytes)
OF_ELEMENTS = (_drop_elements, _repeat_elements, _take_elements_of_another, _splice)
OF_FIELDS = (_set_a_field, _set_a_field, _move_bytes_between_fields, _grow_fields_together)
OF_TOKENS = (_insert_a_token, _put_a_token_behind_a_sign, _put_a_token_behind_a_sign)


@cache
def changes_for(shape: Shape) -> tuple[Change, ...]:
    """The changes that this format has a use for."""
    return (
        *ANYWHERE,
        *OF_ELEMENTS,
        *(OF_FIELDS if shape.fields is not no_fields else ()),
        *(OF_TOKENS if shape.tokens else ()),
        *((_forge, _forge) if shape.forge is not no_forgery else ()),
    )


def _fields_of_an_element(data: bytearray, rng: Random, shape: Shape) -> list[Field]:
    whole = bytes(data)
    starts = shape.elements(whole)
    if not starts:
        return []
    return [field for field in shape.fields(whole, rng.choice(starts)) if field.at + field.width <= len(data)]


def _some_elements(data: bytes | bytearray, rng: Random, shape: Shape) -> tuple[int, int]:
    """Where a run of elements starts and ends."""
    bounds = [*shape.elements(bytes(data)), len(data)]
    first = rng.randrange(len(bounds))
    return bounds[first], bounds[min(first + rng.choice((1, 1, 2, 4)), len(bounds) - 1)]


def _set_field(data: bytearray, field: Field, rng: Random, shape: Shape) -> None:
    bits = 8 * field.width
    left = len(data) - field.at
    near = _read(data, field) + rng.choice((-16, -2, -1, 1, 2, 16))
    limits = (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2**bits - 2)
    _write(
        data, field, rng.choice((near, left, left - field.width, *limits, *shape.numbers)) + rng.choice((0, 0, -1, 1))
    )


def _read(data: bytearray, field: Field) -> int:
    return int.from_bytes(data[field.at : field.at + field.width], "big", signed=True)


def _write(data: bytearray, field: Field, value: int) -> None:
    if field.at + field.width <= len(data):
        data[field.at : field.at + field.width] = (value % (1 << 8 * field.width)).to_bytes(field.width, "big")
