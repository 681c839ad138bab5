"""``rmqha replay``, which is also ``rmqha job replay``: sends stored messages to a broker again."""

import base64
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import orjson
from zope.interface import Attribute, Interface, implementer

from rmqha.cli.access import WAY
from rmqha.cli.brokers import make_client, run_client
from rmqha.cli.dump import open_source
from rmqha.cli.replaymemory import Memory, MessageBar, Saved, progress_as_json
from rmqha.cli.running import Interrupted, the_reactor
from rmqha.cli.shared import JSON, print_json, with_options
from rmqha.client import MQClientError, Producer, SendStatus
from rmqha.client.lookup import Brokers
from rmqha.client.replay import (
    MAX_FAILURES,
    Delayed,
    Fate,
    Planner,
    Progress,
    Replay,
    ReplayOptions,
    Sent,
    Stored,
    Survey,
    TooManyFailures,
    Wanted,
)
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import parse_time
from rmqha.net.endpoints import split_addresses
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.wire.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from rmqha.wire.layout import BORNHOST_V6_FLAG, MESSAGE_MAGIC_CODE, STOREHOSTADDRESS_V6_FLAG
from rmqha.wire.record import LOOPBACK, Host, Record

if TYPE_CHECKING:
    from rmqha.pipeline.sql import Condition

BREATHS = 1000
"""The reactor gets a turn after this many stored messages."""
FAILURES_SHOWN = 20


class ISource(Interface):
    """Stored messages."""

    name: str = Attribute("How the user has named it.")
    levels: str = Attribute("The delay levels of its messages (messageDelayLevel).")

    def messages() -> Iterator[Stored | None]:
        """All of them, from the start each time. None in between lets the reactor do other work."""


def _place(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int | None, int | None]:
    """An offset and a time in ms, one of which is None."""
    if text is None:
        return None, None
    if text.isascii() and text.isdecimal():
        return int(text), None
    try:
        return None, parse_time(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither an offset nor a time: {error}") from None


CHOICE = (
    click.option("--topic", "topics", multiple=True, help="Only this topic. May be given several times."),
    click.option("--key", "keys", multiple=True, help="Only messages with this key or message id (UNIQ_KEY)."),
    click.option("--tag", "tags", multiple=True, help="Only messages with this tag."),
    click.option("--queue", "queue_ids", multiple=True, type=int, help="Only this queue."),
    click.option(
        "--from", "start", callback=_place, metavar="OFFSET|TIME", help="From this offset, or stored from this time on."
    ),
    click.option("--to", "end", callback=_place, metavar="OFFSET|TIME", help="Before this offset or store time."),
)
SENDING = (
    click.option("--dry-run", is_flag=True, help="Count the messages by topic; send nothing."),
    click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most this many messages a second."),
    click.option(
        "--progress",
        "progress_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Keep in FILE how far it is, and continue from there if FILE exists.",
    ),
    click.option(
        "--delayed",
        type=click.Choice([one.value for one in Delayed]),
        default=Delayed.REMAINING.value,
        show_default=True,
        help="Delay delayed messages by the rest of their time (rounded up to a level), by their level, or not.",
    ),
    click.option("--any-queue", is_flag=True, help="Spread messages over all queues instead of keeping their queues."),
    click.option(
        "--max-failures",
        type=click.IntRange(min=1),
        default=MAX_FAILURES,
        show_default=True,
        help="Stop after this many refused messages.",
    ),
    click.option("--group", default="rmqha-replay", help="The producer group."),
)
AGAIN = (
    click.option(
        "--where",
        metavar="SQL",
        help="Only messages for which this is true: \"topic = 'orders' and storeTimestamp >= '2026-11-22T09:30:00Z'\".",
    ),
    click.option("--to-topic", metavar="TOPIC", help="Send all messages to this topic instead of their own."),
    click.option(
        "--skip-sent",
        is_flag=True,
        help="Ask the brokers for each message first, and skip those that were replayed from SOURCE.",
    ),
)


@dataclass(frozen=True, slots=True)
class Sending:
    """The values of the options of ``SENDING`` and ``AGAIN``. Messages are marked with ``source_id`` unless it is
    None.
    """

    dry_run: bool = False
    rate: float | None = None
    progress_file: Path | None = None
    delayed: str = Delayed.REMAINING.value
    any_queue: bool = False
    max_failures: int = MAX_FAILURES
    group: str = "rmqha-replay"
    where: str | None = None
    to_topic: str | None = None
    skip_sent: bool = False
    source_id: str | None = None


@click.command()
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path))
@with_options(CHOICE)
@with_options(AGAIN)
@with_options(SENDING)
@with_options(WAY)
@SETTINGS
@JSON
def replay(source: Path, conf: Path | None, sets: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Send the messages of SOURCE to a broker again: a store, a file of STORE/rmqha/cut, or an archive.

    Each message keeps its body, tags, keys, user properties, message id (UNIQ_KEY) and queue number. It gets a new
    offset, and properties that brokers make are dropped. Messages of one queue keep their order. Not sent, but counted:
    half messages of transactions, delayed messages that SOURCE also holds as delivered, and messages of system topics.
    A timer message of RocketMQ 5 that waits is sent with its time: the broker must take such messages.

    --where takes a condition in SQL (DuckDB's). Its columns are topic, queueId, queueOffset, physicalOffset, flag,
    sysFlag, bornTimestamp, bornHost, storeTimestamp, reconsumeTimes, tags, keys, msgId, properties (a map:
    properties['x'] = 'y') and body (decode(body) is its text). A delayed message has the topic and queue that it is
    for.

    The property RMQHA_REPLAY of each sent message names SOURCE and the message's offset there. If the command stops, or
    is killed, type it again: with --progress FILE it sends what is left, and asks the brokers for the at most 32
    messages whose result it did not get. A message that is sent twice in spite of that is one that its broker did not
    find by its id: a delayed one, or one on a broker without an index. Without --progress, the last line names the
    offset to continue from, and --skip-sent asks for each message.

    Exit code 6 if a broker has stored a message, but its disk or slave did not in time; 7 if no broker answers; 8 if a
    broker refused messages: the others were sent, and each refused one is named.
    """
    choice = {name: given.pop(name) for name in ("topics", "keys", "tags", "queue_ids", "start", "end")}
    wanted = wanted_of(**choice)
    options = {name: given.pop(name) for name in Sending.__dataclass_fields__ if name != "source_id"}
    sending = Sending(**options, source_id=_source_id(source))
    kind = ArchiveSource if (source / "_manifest").is_dir() else Log
    reading: ISource = kind(source, wanted, conf, sets)
    if sending.where is not None:
        reading = _filtered(reading, sending.where)
    run_replay(reading, wanted, sending, given, as_json)


def _source_id(source: Path) -> str:
    """What a source is known by: the id of its store, or else its path. Raises ArchiveError, OSError."""
    if (source / "_manifest").is_dir():
        from rmqha.pipeline.jobs.manifest import Archive

        ids = {manifest.store_id for manifest in Archive(source).manifests()}
        store_id = ids.pop() if len(ids) == 1 else None
    else:
        state = NodeState.read(source) if source.is_dir() else None
        store_id = None if state is None else state.store_id
    return store_id or hashlib.sha256(str(source.absolute()).encode()).hexdigest()[:32]


def _filtered(source: ISource, where: str) -> ISource:
    """The messages for which the condition is true. Raises Trouble if it is not a condition."""
    from rmqha.pipeline.errors import OptionError
    from rmqha.pipeline.sql import Condition

    try:
        return Filtered(source, Condition(where))
    except ModuleNotFoundError as error:
        raise Trouble(ExitCode.USAGE, f"--where needs {error.name}: pip install 'rmqha[spark]'") from error
    except OptionError as error:
        raise Trouble(ExitCode.USAGE, f"--where: {error}") from error


def wanted_of(
    topics: tuple[str, ...],
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    queue_ids: tuple[int, ...],
    start: tuple[int | None, int | None],
    end: tuple[int | None, int | None],
) -> Wanted:
    """What the options of ``CHOICE`` select."""
    return Wanted(
        frozenset(topics) or None,
        frozenset(keys) or None,
        frozenset(tags) or None,
        frozenset(queue_ids) or None,
        start[0] or 0,
        end[0],
        start[1],
        end[1],
    )


@implementer(ISource)
class Log:
    """A store, or a file of bytes that were cut off one."""

    def __init__(self, path: Path, wanted: Wanted, conf: Path | None, sets: tuple[str, ...]) -> None:
        self.name = str(path)
        self.levels = str(settings_of(path, conf, sets).message_delay_level)
        self._path = path
        self._wanted = wanted
        self._conf = conf
        self._sets = sets

    def messages(self) -> Iterator[Stored | None]:
        """See ``ISource``. Raises Trouble if there is nothing to read."""
        with open_source(self._path, self._conf, self._sets) as reader:
            for number, (offset, record) in enumerate(reader.records(self._wanted.start, self._wanted.end)):
                if number % BREATHS == 0:
                    yield None
                if isinstance(record, Record):
                    yield Stored(offset, record)


@implementer(ISource)
class ArchiveSource(Log):
    """An archive."""

    def messages(self) -> Iterator[Stored | None]:
        """See ``ISource``. Raises Trouble if there is nothing to read."""
        from rmqha.pipeline.jobs.messages import archived_messages

        found = archived_messages(self._path, self._wanted.start, self._wanted.end)
        for number, (offset, record, problem) in enumerate(found):
            if number % BREATHS == 0:
                yield None
            yield Stored(offset, record, problem)


@implementer(ISource)
class Filtered:
    """The messages of another source for which a condition is true."""

    def __init__(self, source: ISource, condition: "Condition") -> None:
        self.name = source.name
        self.levels = source.levels
        self._source = source
        self._condition = condition

    def messages(self) -> Iterator[Stored | None]:
        """See ``ISource``."""
        from rmqha.cli.replaycondition import passing

        return passing(self._source.messages(), self._condition)


@implementer(ISource)
class Lines:
    """The lines of a file that ``rmqha dump --json`` has printed."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name
        self.levels = DEFAULT_DELAY_LEVELS
        self._file = file

    def messages(self) -> Iterator[Stored | None]:
        """See ``ISource``. Raises Trouble with exit code 2 at a line that is something else."""
        return stored_lines(self._file)


def stored_lines(file: IO[bytes]) -> Iterator[Stored | None]:
    """The messages of the lines that ``rmqha dump --json`` prints, with the numbers of their lines from 1 on.

    Raises Trouble with exit code 2 at a line that is something else.
    """
    file.seek(0)
    for number, line in enumerate(file, 1):
        if number % BREATHS == 0:
            yield None
        if not line.strip():
            continue
        try:
            content = orjson.loads(line)
            if "blank" in content:
                continue
            record = _record_of(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Trouble(
                ExitCode.USAGE, f"line {number} is not a line of rmqha dump --json ({error}): nothing was sent"
            ) from error
        size = content.get("totalSize", record.total_size)
        problem = None if size == record.total_size else "its topic or properties are not UTF-8: the line lost them"
        yield Stored(number, record, problem)


def _record_of(content: Mapping[str, Any]) -> Record:
    """Raises ValueError, KeyError, TypeError, AttributeError."""
    topic, stored = content["topic"], content["propertiesStored"]
    if not topic or not isinstance(topic, str) or not isinstance(stored, str):
        raise ValueError("topic and propertiesStored must be texts")

    def number(name: str) -> int:
        return int(content.get(name, 0))

    return Record(
        topic=topic,
        body=base64.b64decode(content["body"], validate=True),
        properties_stored=stored,
        queue_id=number("queueId"),
        flag=number("flag"),
        sys_flag=number("sysFlag"),
        born_timestamp=number("bornTimestamp"),
        store_timestamp=number("storeTimestamp"),
        reconsume_times=number("reconsumeTimes"),
        born_host=IPV6_LOOPBACK if number("sysFlag") & BORNHOST_V6_FLAG else LOOPBACK,
        store_host=IPV6_LOOPBACK if number("sysFlag") & STOREHOSTADDRESS_V6_FLAG else LOOPBACK,
        magic=number("magic") or MESSAGE_MAGIC_CODE,
    )


IPV6_LOOPBACK = Host(bytes(15) + b"\1", 0)
"""In place of any IPv6 host: only its size counts."""


def run_replay(source: ISource, wanted: Wanted, sending: Sending, way: dict[str, Any], as_json: bool) -> None:
    """Look at the source, then send what is wanted. Raises Trouble."""
    whose = {
        "source": str(Path(source.name).absolute()),
        "wanted": _wanted_as_json(wanted),
        "where": sending.where,
        "toTopic": sending.to_topic,
    }
    saved = Saved(sending.progress_file, whose)
    progress = saved.read()
    if progress.end is not None:
        wanted = replace(wanted, end=progress.end)
    sent = Sent(sending.to_topic, sending.source_id)
    planner = Planner(wanted, Delayed(sending.delayed), DelayLevels(source.levels), sent=sent)
    with MessageBar("looking", None) as looked:
        survey = planner.survey(_counted(source.messages(), looked))
    if sending.dry_run:
        _tell_survey(survey, as_json)
        return
    progress.end = survey.end if progress.end is None else progress.end
    reactor = the_reactor()
    client = make_client(reactor, way)
    options = ReplayOptions(sending.rate, not sending.any_queue, sending.max_failures)
    brokers = Brokers(client, split_addresses(way["namesrv"] or ""), way["broker"])
    asks_all = sending.skip_sent or (saved.machine_stopped and sending.source_id is not None)
    time.sleep(saved.unsettled_seconds)  # brokers tell nobody when they find a message; the reactor does not run yet
    saved.write(progress)
    with MessageBar("sending", survey.messages) as shown:
        memory = Memory(saved, brokers, shown)
        work = Replay(Producer(client, sending.group), reactor, memory, options, progress, asks_all)
        start, end = progress.position, progress.end
        rest = (one if one is None else planner.plan(one) for one in source.messages())
        not_done = (one for one in rest if one is None or start <= one.position < end)
        try:
            run_client(reactor, client, work.run(one for one in not_done if one is None or one.fate is not Fate.OTHER))
        except (MQClientError, TooManyFailures, Interrupted) as error:
            saved.write(work.progress)
            _tell_result(work.progress, survey, as_json)
            raise Trouble(_code_of(error), f"{error}; {_how_to_continue(work.progress, sending)}") from error
        finally:
            saved.close()
    saved.write(work.progress, is_over=True)
    _tell_result(work.progress, survey, as_json)
    _judge(work.progress)


def _code_of(error: Exception) -> ExitCode:
    if isinstance(error, Interrupted):
        return ExitCode.INTERRUPTED
    return ExitCode.CANNOT_CONNECT if isinstance(error, MQClientError) else ExitCode.IO_ERROR


def _how_to_continue(progress: Progress, sending: Sending) -> str:
    if sending.progress_file is not None:
        asks = f"; it first asks the brokers for {len(progress.unknown)} messages" if progress.unknown else ""
        return f"the same command continues{asks}"
    twice = ""
    if progress.reached > progress.position:
        twice = f"; messages from {progress.position} to before {progress.reached} may then be sent twice"
        twice += ", without --skip-sent" if sending.source_id is not None else ""
    return f"--from {progress.position} continues{twice}"


def _judge(progress: Progress) -> None:
    """Raises Trouble if not all messages were stored as they should be."""
    if progress.failures:
        raise Trouble(ExitCode.IO_ERROR, f"{len(progress.failures)} messages were not sent; the others were")
    if set(progress.statuses) - {SendStatus.SEND_OK}:
        raise Trouble(ExitCode.STALLED, "not all messages were stored on disk and slaves in time")


def _tell_survey(survey: Survey, as_json: bool) -> None:
    if as_json:
        print_json({"messages": survey.messages, "topics": dict(survey.to_send), "notSent": _others(survey)})
        return
    for topic, count in sorted(survey.to_send.items()):
        say(f"{topic}: {count} messages")
    _tell_others(survey)
    say(f"{survey.messages} messages would be sent; nothing was sent")


def _others(survey: Survey) -> dict[str, int]:
    return {fate.name.lower(): count for fate, count in survey.others.items()}


def _tell_others(survey: Survey) -> None:
    for fate, count in survey.others.items():
        say(f"not sent: {count} {fate.value}")


def _tell_result(progress: Progress, survey: Survey, as_json: bool) -> None:
    if as_json:
        print_json({**progress_as_json(progress), "notSent": _others(survey)})
        return
    if not survey.messages:
        say("there are no messages to send")
    for status, count in progress.statuses.items():
        say(f"{status.name} {count}")
    if progress.found:
        say(f"not sent: {progress.found} that a broker has from an earlier run")
    if progress.again:
        say(f"sent again: {progress.again} whose result an earlier run did not get, and that no broker knows")
    _tell_others(survey)
    for failure in progress.failures[:FAILURES_SHOWN]:
        say(f"not sent: the message at {failure.position} of {failure.topic}: {failure.reason}")
    if len(progress.failures) > FAILURES_SHOWN:
        say(f"… and {len(progress.failures) - FAILURES_SHOWN} more: --json names all")


def _wanted_as_json(wanted: Wanted) -> dict[str, Any]:
    fields = {name: getattr(wanted, name) for name in Wanted.__dataclass_fields__}
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in fields.items()}


def _counted(messages: Iterator[Stored | None], bar: MessageBar) -> Iterator[Stored | None]:
    for number, stored in enumerate(messages):
        if stored is None:
            bar.show(number)
        yield stored
