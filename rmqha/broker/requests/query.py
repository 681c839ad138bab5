"""Finds messages by key and by id (spec/remoting.md 2.6)."""

from rmqha.kit.steps import Steps
from rmqha.remoting.header import Header, refused
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode

UNIQUE_MSG_QUERY_FLAG = "_UNIQUE_KEY_QUERY"
HEADER_ROOM_BYTES = 64 * 1024
MAX_BODY_BYTES = FRAME_MAX_LENGTH - HEADER_ROOM_BYTES


class QueryProcessors:
    """Answers requests for single messages. A query by UNIQ_KEY gives at most ``default_query_max_num`` of them."""

    def __init__(self, store: MessageStore, default_query_max_num: int) -> None:
        self._store = store
        self._default_query_max_num = default_query_max_num

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message_by_id,
        }

    def query_message(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Messages with a key, oldest first. If they do not fit a frame, the newest of them."""
        return connection.turns.run(self._query_message(request))

    def _query_message(self, request: RemotingCommand) -> Steps[RemotingCommand]:
        header = Header(request)
        by_unique_key = header.boolean(UNIQUE_MSG_QUERY_FLAG, default=False)
        reader = self._store.reader
        found = yield from reader.query_message_in_steps(
            header.text("topic"),
            header.text("key"),
            self._default_query_max_num if by_unique_key else header.integer("maxNum"),
            header.integer("beginTimestamp"),
            header.integer("endTimestamp"),
        )
        updated, updated_at = reader.index_last_update
        ext_fields = {"indexLastUpdateTimestamp": str(updated), "indexLastUpdatePhyoffset": str(updated_at)}
        records: list[bytes] = []
        room = MAX_BODY_BYTES
        for message in reversed(found):
            room -= message.total_size
            record = reader.record_at(message.physical_offset) if room >= 0 else None
            if record is None:
                break
            records.insert(0, record)
        if not records:
            return RemotingCommand(
                ResponseCode.QUERY_NOT_FOUND,
                remark="can not find message, maybe time range not correct",
                ext_fields=ext_fields,
            )
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields=ext_fields, body=b"".join(records))

    def view_message_by_id(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """The message at a physical offset, which clients know from the message id."""
        offset = Header(request).integer("offset")
        record = self._store.reader.record_at(offset)
        if record is None:
            raise refused(f"can not find message by the offset, {offset}")
        return RemotingCommand(ResponseCode.SUCCESS, body=record)
