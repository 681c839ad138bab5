"""Java's string hash, against values known from Java and against its definition (spec/store.md 3.11, 7.1, 7.2)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.javahash import java_hash, tags_hash
from rmqha.wire.javahashes import index_hashes, java_hashes, stored_hashes

KNOWN = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "TagA": 2598919,
    "TopicA#ABC": 0x434BD151,
    "TopicA#k1": -0x717125C9,
    "TopicA#k2": -0x717125C8,
    "polygenelubricants": -(2**31),
    "é": 0xE9,
    "漢": 0x6F22,
    "😀": 31 * 0xD83D + 0xDE00,
    "\udcff": 0xDCFF,
    "x\U0001f600": (31 * 31 * 0x78 + 31 * 0xD83D + 0xDE00),
}
ANY_TEXT = st.text(st.characters() | st.sampled_from("aé漢😀\ud800\udbff\udc00\udfff"), max_size=40)
STORED = st.binary(max_size=40) | st.text("aé漢😀", max_size=10).map(str.encode)
ASCII = st.text(st.characters(max_codepoint=127), max_size=300)


def plain_hash(text: str) -> int:
    """As Java's documentation has it: code units weighed with powers of 31, the sum wrapped to 32 bits."""
    units: list[int] = []
    for character in text:
        point = ord(character)
        if point > 0xFFFF:
            units += [0xD800 + (point - 0x10000 >> 10), 0xDC00 + (point - 0x10000 & 0x3FF)]
        else:
            units.append(point)
    total = sum(unit * pow(31, len(units) - 1 - place, 2**32) for place, unit in enumerate(units))
    return (total + 2**31) % 2**32 - 2**31


class JavaHashTests(SynchronousTestCase):
    def test_values_known_from_java(self) -> None:
        for text, value in KNOWN.items():
            self.assertEqual(java_hash(text), value, text)
            self.assertEqual(tags_hash(text), value, text)
        self.assertEqual(java_hashes(list(KNOWN)).tolist(), list(KNOWN.values()))

    @given(ANY_TEXT)
    def test_any_text_hashes_as_defined(self, text: str) -> None:
        self.assertEqual(java_hash(text), plain_hash(text))

    @given(st.lists(ANY_TEXT, max_size=10))
    def test_many_at_once_hash_as_one_by_one(self, texts: list[str]) -> None:
        self.assertEqual(java_hashes(texts).tolist(), [plain_hash(text) for text in texts])

    @given(st.lists(ASCII, max_size=30))
    def test_many_ascii_texts_hash_as_one_by_one(self, texts: list[str]) -> None:
        self.assertEqual(java_hashes(texts).tolist(), [plain_hash(text) for text in texts])

    def test_one_text_beyond_ascii_changes_nothing_for_the_others(self) -> None:
        self.assertEqual(java_hashes(["TagA", "é", "hello"]).tolist(), [2598919, 0xE9, 99162322])

    def test_nothing_hashes_to_nothing(self) -> None:
        self.assertEqual(java_hashes([]).tolist(), [])

    @given(st.lists(st.tuples(st.text("a漢", max_size=3), STORED), max_size=10))
    def test_stored_texts_hash_as_what_they_are_read_as_behind_what_precedes_them(
        self, texts: list[tuple[str, bytes]]
    ) -> None:
        data = np.frombuffer(b"".join(stored for _, stored in texts), np.uint8)
        lengths = np.array([len(stored) for _, stored in texts], np.int64)
        before = np.array([java_hash(prefix) for prefix, _ in texts], np.int64)
        wanted = [plain_hash(prefix + stored.decode("utf-8", "surrogateescape")) for prefix, stored in texts]
        self.assertEqual(stored_hashes(data, np.cumsum(lengths) - lengths, lengths, before).tolist(), wanted)


class IndexHashTests(SynchronousTestCase):
    def test_a_negative_hash_loses_its_sign(self) -> None:
        texts = ["TopicA#ABC", "TopicA#k1", "TopicA#k2"]
        self.assertEqual(index_hashes(texts).tolist(), [0x434BD151, 0x717125C9, 0x717125C8])

    def test_the_one_without_a_positive_twin_counts_as_zero(self) -> None:
        self.assertEqual(index_hashes(["polygenelubricants", "a"]).tolist(), [0, 97])

    @given(st.lists(ANY_TEXT, max_size=10))
    def test_no_key_hash_is_negative(self, texts: list[str]) -> None:
        expected = [0 if plain_hash(text) == -(2**31) else abs(plain_hash(text)) for text in texts]
        self.assertEqual(index_hashes(texts).tolist(), expected)
