"""The pass over ordinary sends: whatever comes, a broker with it does what one without it does."""

import os
from collections.abc import Iterable, Mapping
from itertools import count, pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rmqha.broker.requests import send, timersends
from rmqha.remoting import turns
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS
from tests import examples
from tests.broker.requests.bothways import SETTINGS, Event, Scenario, Side
from tests.broker.requests.sendframes import (
    ALL_TWISTS,
    APP,
    ENDINGS,
    FIELD_TWISTS,
    GARBAGE,
    GUESS,
    HEADS,
    NO_TWISTS,
    ODD_ENDS,
    ODD_HEADS,
    ODD_TOPICS,
    ODD_VALUES,
    SEGMENTS,
    STRANGER,
    SYS_FLAGS,
    TOPICS,
    USUAL,
    Send,
    Twist,
    others,
    pull,
    sends,
)
from tests.fixtures import new_folder
from tests.fuzz.mutation import mutate
from tests.fuzz.texts import COMMAND
from tests.remoting.test_protocol import frame
from tests.twins import KernelTests, PlainTests

UNKNOWN = frame(RemotingCommand(9999, 107))
SYNC = {"brokerRole": "SYNC_MASTER"}
FLUSH = {"flushDiskType": "SYNC_FLUSH"}
HAPPENINGS = st.one_of(
    st.builds(Event, name=st.just("time"), number=st.sampled_from([0, 0, 0, 1, 30, 600])),
    st.builds(
        Event,
        name=st.sampled_from(["slow disk", "flushed", "replicated", "replicated", "room"]),
    ),
    st.builds(Event, name=st.just("full"), number=st.integers(0, 100)),
    st.builds(Event, name=st.sampled_from(["lease", "replicas"]), number=st.sampled_from([0, 1, 2, 3, 3, 3])),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Streams with all kinds of requests, cut anywhere, and what happens between the pieces."""
    changed, has_acl = draw(st.sampled_from(SETTINGS)), draw(st.sampled_from([False, False, True]))
    keys = APP if has_acl else None
    plain, odd = sends(keys, NO_TWISTS), sends(keys, FIELD_TWISTS)
    requests = st.one_of(plain, plain, plain, plain, plain, plain, odd, odd, others(keys))
    lasts = st.lists(sends(keys, ALL_TWISTS) | ENDINGS, max_size=2)
    script: list[Event] = []
    for connection in range(draw(st.integers(1, 2))):
        stream = b"".join([*draw(st.lists(requests, min_size=4, max_size=20)), *draw(lasts)])
        for piece in draw(cut(stream)):
            if draw(st.sampled_from([False, False, False, True])):
                script.append(draw(HAPPENINGS))
            script.append(Event(connection, piece))
    return Scenario(changed, has_acl, draw(st.sampled_from([128, 128, 3, 1])), script)


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The pieces of a stream: all at once, byte by byte, or any."""
    match draw(st.sampled_from(["whole", "whole", "any", "any", "bytes"])):
        case "whole":
            return [stream]
        case "bytes":
            return [stream[at : at + 1] for at in range(len(stream))]
    places = sorted({0, len(stream), *draw(st.lists(st.integers(0, len(stream)), max_size=8))})
    return [stream[start:end] for start, end in pairwise(places)]


class EqualTests(PlainTests):
    """Two brokers, with a pass and without."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("fsync", "fdatasync"):
            self.patch(os, name, lambda fd: None)

    def check(self, scenario: Scenario) -> Any:
        """Both do the same. Returns the statistics of the one with a pass."""
        self.patch(turns, "MAX_REQUESTS_PER_TURN", scenario.requests_per_turn)
        found = []
        for has_pass in (False, True):
            numbers = count()
            for module in (send, timersends):
                self.patch(module, "uuid4", lambda numbers=numbers: UUID(int=next(numbers)))
            told, broker = scenario.play(new_folder(self), has_pass)
            found.append(told)
        for name, expected in found[0].items():
            self.assertEqual(found[1][name], expected, name)
        return broker.stats

    def check_each(self, odd: Iterable[bytes], changed: Mapping[str, str] = SETTINGS[0], has_acl: bool = False) -> Any:
        """Both do the same with each odd request between ordinary ones, all in one read."""
        ordinary = Send(USUAL, keys=APP if has_acl else None).frame
        stream = ordinary * 2 + b"".join(each + ordinary for each in odd)
        return self.check(Scenario(changed, has_acl, 128, [Event(data=stream)]))

    def test_each_value_of_each_field(self) -> None:
        values = [value for value in ODD_VALUES if value != '"\\ud800"']  # it closes the connection
        for code, names in ((310, V2_FIELDS), (10, V1_FIELDS)):
            stats = self.check_each(
                Send(USUAL, code=code, names=names, twists=[Twist("fields", how, name, value)]).frame
                for name in USUAL
                for value in values
                for how in ("set", "again")
            )
            self.assertGreater(stats.sends_taken, 1200)

    def test_each_field_that_is_missing(self) -> None:
        stats = self.check_each(
            Send(USUAL, code=code, names=names, twists=[Twist("fields", "drop", name, "")]).frame
            for name in USUAL
            for code, names in ((310, V2_FIELDS), (10, V1_FIELDS))
        )
        self.assertEqual(stats.sends_taken, 1 + 24 + 1 + 8, "4 fields are no matter")

    def test_each_property_alone_and_beside_others(self) -> None:
        usual = "TAGS\1A\2KEYS\1a b\2UNIQ_KEY\1K1"
        properties = [
            text
            for each in SEGMENTS
            for text in (each, f"{each}\2", f"\2{each}", f"{usual}\2{each}", f"{each}\2{usual}", f"{each}\2\2{each}")
        ]
        for changed in ({}, {"timerWheelEnable": "true"}):
            for escapes in (True, False):
                stats = self.check_each(
                    (Send({**USUAL, "properties": text}, escapes=escapes).frame for text in properties), changed
                )
                self.assertGreater(stats.sends_taken, len(properties) * 3 // 2)

    def test_each_topic_queue_and_flag(self) -> None:
        odd = [
            *({"topic": topic} for topic in (*TOPICS, *ODD_TOPICS)),
            *({"topic": topic, "queue_id": "-1"} for topic in (*TOPICS, *ODD_TOPICS)),
            *({"queue_id": str(number)} for number in range(-2, 10)),
            *({"sys_flag": str(flag)} for flag in SYS_FLAGS),
            *({"reconsume_times": times, "topic": topic} for times in ("0", "17", "-1") for topic in ("T", "%RETRY%G")),
        ]
        for changed in SETTINGS[8:]:
            self.check_each((Send({**USUAL, **values}).frame for values in odd), changed)

    def test_each_size_at_the_limits(self) -> None:
        sizes = [*range(3830, 3860), *range(3995, 4005)]
        odd = [Send({**USUAL, "properties": ""}, body=bytes(size)).frame for size in sizes]
        odd += [Send({**USUAL, "properties": "x\1" + "y" * size}, body=b"").frame for size in range(3830, 3860)]
        self.check_each(odd)
        long = [Send({**USUAL, "properties": "x\1" + "y" * size}).frame for size in (16_000, 16_400, 32_700, 32_767)]
        self.check_each(long, {"maxMessageSize": "100000", "mappedFileSizeCommitLog": "262144"})

    def test_each_place_of_a_segment_s_end(self) -> None:
        for size in range(7700, 7760, 7):
            first = Send({**USUAL, "properties": ""}, body=bytes(size)).frame
            stream = first + Send({**USUAL, "properties": ""}, body=b"").frame * 4
            self.check(Scenario({"maxMessageSize": "8100"}, False, 128, [Event(data=stream)]))

    def test_each_style_and_each_twist_of_the_header(self) -> None:
        self.check_each(Send(USUAL, style=style, colon=colon).frame for style in HEADS for colon in (":", ": "))
        ordinary = Send(USUAL).frame
        twists = [
            *(Twist("head", how, name, value) for how in ("set", "again") for name, value in ODD_HEADS),
            *(Twist("head", "drop", name, "") for name in HEADS["java"]),
            *(Twist("end", "add", "", value) for value in ODD_ENDS),
        ]
        streams = [ordinary + Send(USUAL, twists=[twist]).frame + ordinary for twist in twists]
        streams += [ordinary + garbage for garbage in GARBAGE]
        self.check(Scenario({}, False, 10_000, [Event(at, stream) for at, stream in enumerate(streams)]))

    def test_each_fault_of_a_signature(self) -> None:
        odd = [Send(USUAL, keys=keys).frame for keys in (GUESS, STRANGER, None)]
        odd += [Send({**USUAL, "topic": topic}, keys=APP).frame for topic in ("U", "T", "New", "é漢", "%RETRY%G")]
        odd += [
            Send(USUAL, keys=APP, twists=[Twist("fields", how, name, value)]).frame
            for how in ("set", "again", "drop")
            for name in ("Signature", "AccessKey", "own", "properties")
            for value in ("null", "7", "[]", '""', '"x"', '"é"')
        ]
        stats = self.check_each(odd, has_acl=True)
        self.assertGreaterEqual(stats.sends_taken, len(odd))

    def test_a_lease_that_ends_between_append_and_answer(self) -> None:
        read = Event(data=Send(USUAL).frame * 3)
        for changed in (FLUSH, SYNC):
            ends = Event(name="slow disk"), read, Event(name="lease", number=0), Event(name="flushed")
            self.check(Scenario(changed, False, 128, [*ends, Event(name="replicated"), read]))

    def test_a_message_with_many_keys_takes_more_of_a_turn(self) -> None:
        """Else a turn of 128 such messages takes a third of a second."""
        side = Side(new_folder(self), {"maxMessageSize": "100000", "mappedFileSizeCommitLog": "262144"}, False, True)
        side.happen(Event(data=Send({**USUAL, "properties": "KEYS\1" + "k " * 7000}).frame * 3))
        self.assertEqual(side.broker.stats.sends_taken, 1)
        side.end()
        self.assertEqual(side.broker.stats.sends_taken, 3)

    def test_what_clients_in_c_plus_plus_and_javascript_send_is_taken(self) -> None:
        """Numbers as such, and batch=0."""
        of_fields = [("queue_id", "1"), ("sys_flag", "0"), ("flag", "0"), ("default_topic_queue_nums", "4")]
        twists = [Twist("fields", "set", name, value) for name, value in of_fields]
        odd = [
            Send({**USUAL, "batch": "0", "unit_mode": "0"}, code=10, names=V1_FIELDS, style="cpp", twists=twists).frame,
            Send(
                USUAL, twists=[*twists, *(Twist("fields", "set", name, "false") for name in ("batch", "unit_mode"))]
            ).frame,
        ]
        stats = self.check_each(odd)
        self.assertEqual((stats.sends_taken, stats.sends_declined.total()), (2 + 2 * len(odd), 0))

    @pytest.mark.long
    def test_each_outcome_of_what_a_put_waits_for(self) -> None:
        ordinary = Send(USUAL).frame
        oneway = Send(USUAL, {"flag": "2"}).frame
        once = Send({**USUAL, "properties": "WAIT\1false"}).frame
        read = Event(data=ordinary * 3 + once + oneway + UNKNOWN + ordinary)
        for changed in ({}, FLUSH, SYNC, FLUSH | SYNC):
            for happens in (
                [],
                [Event(name="slow disk"), read, Event(name="time", number=600)],
                [Event(name="slow disk"), read, Event(name="flushed"), Event(name="replicated")],
                [read, Event(name="lease", number=0), Event(name="replicated")],
                [Event(name="slow disk"), read, Event(name="lease", number=1), Event(name="flushed")],
                [Event(name="lease", number=1)],
                [Event(name="lease", number=2)],
                *([Event(name="replicas", number=number)] for number in range(4)),
                *([Event(name="full", number=number)] for number in range(0, 40, 6)),
                [Event(name="full", number=3), read, Event(name="room")],
            ):
                self.check(Scenario(changed, False, 128, [read, *happens, read]))

    def test_each_limit_of_a_turn_and_of_a_connection(self) -> None:
        ordinary = Send(USUAL).frame
        for most in (1, 2, 3, 6, 7):
            for changed in ({}, SYNC, {"serverMaxRequestsInProgress": "3", **SYNC}):
                script = [Event(at % 2, ordinary * 5 + UNKNOWN) for at in range(4)]
                self.check(Scenario(changed, False, most, script))

    def test_each_pull_that_waits(self) -> None:
        pulls = [
            frame(RemotingCommand(RequestCode.PULL_MESSAGE, at, ext_fields={**pull("T", 0), "subscription": tags}))
            for at, tags in enumerate(("*", "TagA", "TagB", "TagA||TagB", "no"))
        ]
        tagged = [
            Send({**USUAL, "properties": f"TAGS\1{tag}"}).frame for tag in ("no such", "TagB", "TagA", "", "TagB")
        ]
        for queue_id in ("1", "2"):
            other = Send({**USUAL, "queue_id": queue_id}).frame
            script = [
                Event(data=b"".join(pulls)),
                Event(1, b"".join(tagged)),
                Event(1, other),
                Event(name="time", number=9),
            ]
            self.check(Scenario({}, False, 128, script))

    def test_a_stream_cut_at_each_place(self) -> None:
        stream = Send(USUAL, body=b"a").frame + UNKNOWN + Send(USUAL).frame + Send(USUAL).frame
        script = [Event(data=stream[at : at + 1]) for at in range(len(stream))]
        for connection, at in enumerate(range(0, len(stream), 3), start=1):
            script += Event(connection, stream[:at]), Event(connection, stream[at:])
        self.check(Scenario({}, False, 10_000, script))

    def check_mutated(self, seed: int, count: int = 200) -> None:
        """Both do the same with sends that are spoilt anywhere, each between sound ones on a connection of its own."""
        rng = Random(seed)
        sound = [
            Send(USUAL, body=b"x").frame,
            Send(USUAL, code=10, names=V1_FIELDS, style="go").frame,
            Send({**USUAL, "properties": "", "topic": "é漢"}, {"flag": "2"}, escapes=True, style="cpp").frame,
        ]
        script: list[Event] = []
        for connection in range(count):
            spoilt = mutate(rng.choice(sound)[4:], rng, COMMAND.shape, [each[4:] for each in sound])
            stream = sound[0] + len(spoilt).to_bytes(4, "big") + spoilt + rng.choice(sound)
            at = rng.choice((len(stream), rng.randrange(len(stream))))
            script += Event(connection, stream[:at]), Event(connection, stream[at:])
        self.check(Scenario({}, False, 10_000, script))

    def test_sends_that_are_spoilt(self) -> None:
        self.check_mutated(1)

    @pytest.mark.fuzz
    def test_many_sends_that_are_spoilt(self) -> None:
        for seed in range(2, 2 + examples(50)):
            self.check_mutated(seed)

    @settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
    @given(scenarios())
    @pytest.mark.long
    def test_whatever_comes_both_do_the_same(self, scenario: Scenario) -> None:
        stats = self.check(scenario)
        event(f"{min(stats.sends_taken, 5)} taken or more")
        for reason in stats.sends_declined:
            event(reason.name)


class EqualKernelTests(KernelTests, EqualTests):
    """All of it with the compiled twin."""
