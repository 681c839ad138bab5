"""What every coordinator does: etcd, the witness and the model pass the same tests."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from uuid import uuid4

import pytest
from twisted.internet.defer import CancelledError, gatherResults

from rmqha.coordination.interface import (
    Compare,
    CompareTarget,
    CoordinatorRefused,
    CoordinatorUnavailable,
    Delete,
    ICoordinator,
    LeaseGone,
    Put,
)
from rmqha.coordination.state import KeysAndLeases
from tests.coordination.backends import Backend, Heard, running_backend, until
from tests.inreactor import with_reactor

pytestmark = pytest.mark.process
CREATE, MOD, VALUE = CompareTarget.CREATE, CompareTarget.MOD, CompareTarget.VALUE


@pytest.fixture(scope="module", params=["etcd", "witness", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with running_backend(request.param, tmp_path_factory.mktemp(request.param)) as backend:
        yield backend


@pytest.fixture
def prefix() -> str:
    """The keys of one test."""
    return f"/tests/{uuid4()}/"


@asynccontextmanager
async def client_at(backend: Backend) -> AsyncIterator[ICoordinator]:
    client = backend.client()
    try:
        yield client
    finally:
        await client.close()


async def values(client: ICoordinator, prefix: str) -> dict[str, bytes]:
    snapshot = await client.range(prefix)
    return {key.removeprefix(prefix): found.value for key, found in snapshot.keys.items()}


@with_reactor
async def test_a_key_is_created_only_once(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        absent = Compare(f"{prefix}leader", CREATE, 0)
        first = await client.transact([absent], [Put(f"{prefix}leader", b"a")])
        second = await client.transact([absent], [Put(f"{prefix}leader", b"b")])
        assert (first.succeeded, second.succeeded) == (True, False)
        snapshot = await client.range(prefix)
        found = snapshot.keys[f"{prefix}leader"]
        assert (found.value, found.lease) == (b"a", 0)
        assert found.create_revision == found.mod_revision == first.revision <= snapshot.revision
        assert client.cluster_id


@with_reactor
async def test_comparisons_of_a_key(backend: Backend, prefix: str) -> None:
    key = f"{prefix}k"
    async with client_at(backend) as client:
        created = (await client.transact([], [Put(key, b"1")])).revision
        changed = (await client.transact([Compare(key, MOD, created)], [Put(key, b"2")])).revision
        assert changed > created
        for compare, holds in (
            (Compare(key, CREATE, created), True),
            (Compare(key, CREATE, 0), False),
            (Compare(key, CREATE, changed), False),
            (Compare(key, MOD, changed), True),
            (Compare(key, MOD, created), False),
            (Compare(key, VALUE, b"2"), True),
            (Compare(key, VALUE, b"1"), False),
            (Compare(key, VALUE, b""), False),
            (Compare(f"{prefix}none", VALUE, b""), False),
            (Compare(f"{prefix}none", CREATE, 0), True),
            (Compare(f"{prefix}none", MOD, 0), True),
            (Compare(f"{prefix}none", MOD, 1), False),
        ):
            assert (await client.transact([compare], [])).succeeded is holds, compare


@with_reactor
async def test_a_transaction_writes_all_or_nothing(backend: Backend, prefix: str) -> None:
    a, b, c = (f"{prefix}{name}" for name in "abc")
    async with client_at(backend) as client:
        before = (await client.transact([], [Put(a, b"1"), Put(b, b"1")])).revision
        heard = Heard(client, prefix, before)
        failed = await client.transact([Compare(a, VALUE, b"1"), Compare(b, VALUE, b"no")], [Put(a, b"9"), Delete(b)])
        assert not failed.succeeded
        assert await values(client, prefix) == {"a": b"1", "b": b"1"}
        compares = [Compare(a, VALUE, b"1"), Compare(b, VALUE, b"1")]
        done = await client.transact(compares, [Put(a, b"2"), Delete(b), Put(c, b"3")])
        assert done.succeeded
        assert await values(client, prefix) == {"a": b"2", "c": b"3"}
        await until(lambda: bool(heard.changes), "the changes")
        assert heard.changes == [(done.revision, {a: b"2", b: None, c: b"3"})]


@with_reactor
async def test_a_range_has_the_keys_of_its_prefix_only(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        assert await values(client, prefix) == {}
        names = ["a", "a/b", "b", "ü€", "a b\n"]
        every_byte = bytes(range(256))
        await client.transact([], [Put(prefix + name, every_byte) for name in names])
        await client.transact([], [Put(f"{prefix[:-1]}0", b"after it")])
        assert await values(client, prefix) == dict.fromkeys(names, every_byte)
        assert await values(client, f"{prefix}a") == dict.fromkeys(("", "/b", " b\n"), every_byte)
        everything = await client.range("")
        assert {prefix + name for name in names} <= everything.keys.keys()


@with_reactor
async def test_a_key_that_is_deleted_and_created_again_is_a_new_one(backend: Backend, prefix: str) -> None:
    key = f"{prefix}k"
    async with client_at(backend) as client:
        first = await client.transact([], [Put(key, b"1")])
        await client.transact([], [Delete(key), Delete(f"{prefix}never")])
        assert await values(client, prefix) == {}
        second = await client.transact([Compare(key, CREATE, 0)], [Put(key, b"")])
        assert (await client.range(prefix)).keys[key].create_revision == second.revision > first.revision
        assert not (await client.transact([Compare(key, CREATE, first.revision)], [Put(key, b"old")])).succeeded


@with_reactor
async def test_what_changes_nothing_makes_no_revision(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        before = (await client.transact([], [Put(f"{prefix}k", b"1")])).revision
        await client.transact([], [Delete(f"{prefix}never")])
        await client.transact([Compare(f"{prefix}k", CREATE, 0)], [Put(f"{prefix}k", b"2")])
        await client.revoke(await client.grant(60))
        assert (await client.range(prefix)).revision == before


@with_reactor
async def test_a_lease_takes_its_keys_along(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        lease = await client.grant(60)
        assert await client.keep_alive(lease) == 60
        assert 0 <= await client.time_to_live(lease) <= 60
        done = await client.transact(
            [], [Put(f"{prefix}a", b"1", lease), Put(f"{prefix}b", b"1", lease), Put(f"{prefix}c", b"1")]
        )
        assert (await client.range(prefix)).keys[f"{prefix}a"].lease == lease
        await client.transact([], [Put(f"{prefix}b", b"2")])  # not on the lease any more
        heard = Heard(client, prefix, done.revision + 1)
        await client.revoke(lease)
        assert await values(client, prefix) == {"b": b"2", "c": b"1"}
        await until(lambda: bool(heard.changes), "the deletion")
        assert heard.told == [{f"{prefix}a": None}]
        await client.revoke(lease)
        for call in (client.keep_alive, client.time_to_live):
            with pytest.raises(LeaseGone):
                await call(lease)
        with pytest.raises(LeaseGone):
            await client.transact([], [Put(f"{prefix}d", b"1"), Put(f"{prefix}a", b"1", lease)])
        assert await values(client, prefix) == {"b": b"2", "c": b"1"}


@with_reactor
async def test_a_lease_that_nobody_keeps_alive_ends(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client, client_at(backend) as other:
        short, long = await gatherResults([client.grant(1), client.grant(3600)])
        assert short != long
        done = await client.transact([], [Put(f"{prefix}s", b"", short), Put(f"{prefix}l", b"", long)])
        heard = Heard(other, prefix, done.revision)
        await until(lambda: bool(heard.changes), "the end of the lease")
        assert heard.told == [{f"{prefix}s": None}]
        assert await values(client, prefix) == {"l": b""}
        with pytest.raises(LeaseGone):
            await client.keep_alive(short)
        assert await client.keep_alive(long) == 3600
        await client.revoke(long)


@with_reactor
async def test_of_many_who_try_one_wins(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as first, client_at(backend) as second:
        absent = Compare(f"{prefix}leader", CREATE, 0)
        results = await gatherResults(
            [
                client.transact([absent], [Put(f"{prefix}leader", f"{number}".encode())])
                for number in range(20)
                for client in (first, second)
            ]
        )
        assert sum(result.succeeded for result in results) == 1
        assert {result.revision for result in results} == {(await first.range(prefix)).revision}


@with_reactor
async def test_a_watch_tells_each_change_after_its_revision_in_order(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client, client_at(backend) as other:
        revisions = [(await client.transact([], [Put(f"{prefix}k", b"%d" % number)])).revision for number in range(10)]
        heard = Heard(other, prefix, revisions[3])
        elsewhere = Heard(other, f"{prefix}other", revisions[3])
        revisions += [(await client.transact([], [Put(f"{prefix}k", b"%d" % n)])).revision for n in range(10, 20)]
        await until(lambda: len(heard.changes) >= 16, "16 changes")
        assert heard.changes == [(revisions[n], {f"{prefix}k": b"%d" % n}) for n in range(4, 20)]
        heard.watch.stop()
        last = (await client.transact([], [Put(f"{prefix}k", b"unheard"), Put(f"{prefix}other", b"heard")])).revision
        await until(lambda: bool(elsewhere.changes), "the change of the other watch")
        assert elsewhere.changes == [(last, {f"{prefix}other": b"heard"})]
        assert len(heard.changes) == 16
        assert heard.errors == elsewhere.errors == []


@with_reactor
async def test_a_watch_of_what_is_no_longer_kept_ends(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        first = (await client.transact([], [Put(f"{prefix}k", b"1")])).revision
        last = (await client.transact([], [Put(f"{prefix}k", b"2")])).revision
        backend.compact(last)
        heard = Heard(client, prefix, first - 1)
        await until(lambda: bool(heard.errors), "the end of the watch")
        assert heard.changes == []
        snapshot = await client.range(prefix)
        assert snapshot.keys[f"{prefix}k"].value == b"2"
        again = Heard(client, prefix, snapshot.revision)
        await client.transact([], [Put(f"{prefix}k", b"3")])
        await until(lambda: bool(again.changes), "a change")
        assert again.told == [{f"{prefix}k": b"3"}]
        assert (len(heard.errors), again.errors) == (1, [])


@with_reactor
async def test_random_transactions_do_what_the_state_machine_does(backend: Backend, prefix: str) -> None:
    """All keys and comparisons of 300 transactions, one after the other; revisions by their order, not their number."""
    random, model = Random(16), KeysAndLeases()
    known = {0: 0}
    """The coordinator's revision for each revision of the model."""
    async with client_at(backend) as client:
        for number in range(300):
            keys = [f"{prefix}{name}" for name in random.sample("abcd", 3)]
            compares = [random_compare(random, key, model) for key in keys[: random.randrange(3)]]
            writes = [random.choice((Put(key, b"%d" % (number % 3)), Delete(key))) for key in keys]
            decided = model.transaction(compares, writes)
            if decided is not None:
                model.apply(decided, 0.0)
            real = [replace(each, value=known[each.value]) if each.target is not VALUE else each for each in compares]  # type: ignore[index]  # it is a number there
            result = await client.transact(real, writes)
            assert result.succeeded is (decided is not None), (compares, writes)
            known.setdefault(model.revision, result.revision)
            assert known[model.revision] == result.revision
        found = (await client.range(prefix)).keys
        assert {key: (each.value, each.create_revision, each.mod_revision) for key, each in found.items()} == {
            key: (each.value, known[each.create_revision], known[each.mod_revision]) for key, each in model.keys.items()
        }


def random_compare(random: Random, key: str, model: KeysAndLeases) -> Compare:
    """A comparison that is often true."""
    found = model.keys.get(key)
    if random.random() < 0.3 or found is None:
        return Compare(key, random.choice((CREATE, MOD)), 0)
    return random.choice(
        (
            Compare(key, CREATE, found.create_revision),
            Compare(key, MOD, found.mod_revision),
            Compare(key, MOD, found.create_revision),
            Compare(key, VALUE, b"1"),
        )
    )


@with_reactor
async def test_what_is_not_allowed_is_refused(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        twice: list[Put | Delete] = [Put(f"{prefix}k", b"1"), Delete(f"{prefix}k")]
        wrong = [Put("", b"1"), Put(f"{prefix}k", bytes(65 * 1024)), Put("k" * 600, b"")]
        each_alone: list[list[Put | Delete]] = [[put] for put in wrong]
        for writes in (twice, *each_alone):
            with pytest.raises(CoordinatorRefused):
                await client.transact([], writes)
        with pytest.raises(CoordinatorRefused):
            await client.grant(0)
        assert await values(client, prefix) == {}


@with_reactor
async def test_a_call_can_be_cancelled_and_a_client_closed(backend: Backend, prefix: str) -> None:
    async with client_at(backend) as client:
        call = client.range(prefix)
        call.cancel()
        with pytest.raises(CancelledError):
            await call
        heard = Heard(client, prefix, (await client.range(prefix)).revision)
        waiting = client.range(prefix)
        await client.close()
        with pytest.raises(CoordinatorUnavailable):
            await waiting
        with pytest.raises(CoordinatorUnavailable):
            await client.grant(5)
        assert (heard.changes, heard.errors) == ([], [])
