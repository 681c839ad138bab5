"""Sends as clients send them all day: checked like every other request, but with the decisions of the send before.

Only decisions are kept: which fields are signed, in which order, and that the account may send to the topic. The
signature of each request is checked.
"""

from collections.abc import Mapping
from hmac import compare_digest

from rmqha.acl.needs import TOPIC_FIELDS
from rmqha.acl.signing import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, Pick, SigningKey, pick_of
from rmqha.wire.command import RemotingCommand
from rmqha.wire.topics import RETRY_PREFIX

MAX_KEPT_SENDS = 10_000
"""Topics, over all accounts."""
MAX_KEPT_CHARACTERS = 255
"""In a topic."""


class Sender:
    """What an account sends: how many header fields, which of them it signs, and the topics that it may send to."""

    __slots__ = ("count", "key", "pick", "topics")

    def __init__(self, key: SigningKey, count: int, pick: Pick) -> None:
        self.key = key
        self.count = count
        self.pick = pick
        self.topics: set[str] = set()


class UsualSends:
    """The senders by request code and access key. When there are too many topics, all are forgotten."""

    def __init__(self) -> None:
        self._senders: dict[int, dict[str, Sender]] = {code: {} for code in TOPIC_FIELDS}
        self._topics = 0

    @property
    def topics(self) -> list[str]:
        """All topics that are kept, once for each account and code."""
        return [topic for senders in self._senders.values() for sender in senders.values() for topic in sender.topics]

    def allow(self, code: int, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether the request is allowed as one before it was. False says nothing: the rules decide.

        The fields that are picked and ``Signature`` are all fields of an earlier request. So a request that has these,
        and as many fields, has no other field, which it might have to sign. This is one function because each further
        call costs a put half a percent.
        """
        senders = self._senders.get(code)
        if senders is None:
            return False
        try:
            sender = senders[fields[ACCESS_KEY]]
            if len(fields) != sender.count or fields[TOPIC_FIELDS[code]] not in sender.topics:
                return False
            given = fields[SIGNATURE].encode()
            signed = "".join(sender.pick(fields)).encode()
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError):  # a field is missing, or no text
            return False
        return compare_digest(given, sender.key.signature(signed, body))

    def remember(self, request: RemotingCommand, key: SigningKey) -> None:
        """The rules allowed this request, which was signed with ``key``. Requests that may differ are not kept."""
        topic_field, fields = TOPIC_FIELDS.get(request.code), request.ext_fields
        if topic_field is None or UNIQUE_KEY_QUERY in fields:  # some versions do not sign this field
            return
        topic = fields.get(topic_field)
        if topic is None or len(topic) > MAX_KEPT_CHARACTERS or topic.startswith(RETRY_PREFIX):
            return
        senders = self._senders[request.code]
        if self._topics >= MAX_KEPT_SENDS:
            self._forget()
        count, pick = len(fields), pick_of(fields, request.version)
        sender = senders.setdefault(fields[ACCESS_KEY], Sender(key, count, pick))
        sender.count, sender.pick = count, pick
        self._topics += topic not in sender.topics
        sender.topics.add(topic)

    def _forget(self) -> None:
        self._topics = 0
        for senders in self._senders.values():
            senders.clear()
