"""The names of what the log reports. Each line of a JSON log has one as ``event``; the text of a line may change.

docs/events.md is made from this table: ``make pages``.
"""

from dataclasses import dataclass
from enum import EnumType, StrEnum
from functools import partial
from typing import Any, Self

ALARM_LEVELS = ("warn", "error", "critical")


@dataclass(slots=True)
class _Kind:
    level: str
    meaning: str
    name: str = ""


debug, info, warn, error, critical = (partial(_Kind, level) for level in ("debug", "info", *ALARM_LEVELS))


class _NamedByConstants(EnumType):
    """Gives each event its constant's name in small letters. Python 3.11.0 takes ``auto()`` only if it is alone."""

    def __new__(metacls, name: str, bases: tuple[type, ...], members: Any) -> "_NamedByConstants":
        for constant, kind in members.items():
            if isinstance(kind, _Kind):
                kind.name = constant.lower()
        return super().__new__(metacls, name, bases, members)


class Event(StrEnum, metaclass=_NamedByConstants):
    """A kind of event: its name, its level, and what it means.

    Every call of a logger names one: ``log.info("slave {peer} connected", event=Event.SLAVE_CONNECTED, peer=peer)``.
    """

    level: str
    meaning: str

    def __new__(cls, kind: _Kind) -> Self:
        member = str.__new__(cls, kind.name)
        member._value_, member.level, member.meaning = kind.name, kind.level, kind.meaning
        return member

    @property
    def is_alarm(self) -> bool:
        """Whether its level is warn or higher."""
        return self.level in ALARM_LEVELS

    # The process, its ports and its files
    PROCESS_ENDS = critical("The process ends by itself. `code` is its exit code, `reason` says why.")
    NODE_START_FAILED = critical("A bug: the node cannot start, or its role did not change. It ends.")
    NODE_STOPPED = info("The node has closed its store. `offset` is the end of its log.")
    OPENING_STOPPED = info("The node was stopped before its store was open.")
    LISTENING = info("A port is open: `purpose`, `port`.")
    OPEN_FILES_SHORT = warn(
        "Too few open files are left, so connections are refused. Raise the limit (ulimit -n, LimitNOFILE)."
    )
    CONNECTION_LIMIT_REACHED = warn("A remoting port has its maximum of connections, and refuses new ones.")
    CONNECTS_TOO_FAST = warn(
        "An address makes too many new connections to a remoting port in a second. More are refused."
    )
    LOG_FILE_REOPENED = info("After SIGHUP the log goes on in a new file.")
    LOG_FILE_NOT_REOPENED = error("After SIGHUP the log file cannot be opened. The old file is used further.")
    SYSTEMD_UNREACHABLE = warn("systemd does not get this process's messages.")
    ORDER_REFUSED = warn("A user who may not do so tried to give the node an order, such as a promotion.")
    ORDER_FAILED = critical("An order, such as a promotion, failed for a reason that nobody foresaw.")
    NO_CONTROL_SOCKET = warn("The node cannot take orders: rmqha promote does not reach it while it runs.")
    SERVICE_STOP_FAILED = critical("A part of the process did not stop cleanly.")
    PERIODIC_WORK_FAILED = critical("Periodic work failed, and is tried again. `purpose` names it.")
    PERIODIC_WORK_RECOVERED = info("Periodic work that had failed works again.")
    CONNECTION_BUG = critical("A bug: a TLS connection was closed because its protocol failed.")
    HTTP_REQUEST_FAILED = critical("A bug: an HTTP request could not be answered.")

    # Settings, certificates, keys
    SETTING_WARNING = warn("A setting is not used, or does something that its user may not expect.")
    SETTING_CHANGED = warn("A setting of the running node changed, by mqadmin or SIGHUP: `key`, `old`, `new`.")
    SETTINGS_NEED_RESTART = warn("Settings changed in the configuration, and count only from the next start.")
    SETTINGS_NOT_REREAD = error("After SIGHUP the settings stay as they are, because the configuration is invalid.")
    SETTINGS_NOT_KEPT = error("Settings that mqadmin changed could not be written, and are lost at the next start.")
    KEPT_SETTINGS_INVALID = error(
        "The file with the settings that mqadmin changed is invalid. It is ignored, and kept under another name."
    )
    KEPT_SETTING_USED = warn(
        "At the start: a setting differs from the configuration because mqadmin changed it earlier."
    )
    KEPT_SETTING_DROPPED = warn(
        "At the start: the configuration has changed, or the setting cannot change, so mqadmin's change is dropped."
    )
    KEPT_SETTING_IGNORED = error("At the start: a value that mqadmin had set is invalid.")
    SETTING_CHANGE_REFUSED = warn("A host tried to change settings, and updateBrokerConfigFrom does not allow it.")
    CERTIFICATES_CHANGED = info("After SIGHUP new connections use other certificates.")
    CERTIFICATES_SAME = info("After SIGHUP the certificates are the same as before.")
    CERTIFICATES_NOT_REREAD = error("After SIGHUP the certificates stay as they are, because a file cannot be used.")
    CREDENTIALS_CHANGED = info("After SIGHUP requests are signed with other keys.")
    CREDENTIALS_NOT_REREAD = error(
        "After SIGHUP the keys of aclFile stay as they are, because the file cannot be used."
    )
    RELOAD_FAILED = critical("After SIGHUP not everything could be read again.")
    TLS_FAILED = warn("A TLS handshake with a server failed: `host`, `reason`.")

    # Access control
    ACCOUNTS_READ = info("The files with accounts were read.")
    ACCOUNTS_NOT_REREAD = error(
        "A file with accounts is invalid or missing. The accounts stay as they were until it is correct."
    )
    ACCOUNTS_WARNING = warn("The files with accounts have something to correct.")
    ACCOUNTS_CHANGED = warn("An administrator changed accounts or white addresses.")
    ACCOUNT_REFUSED = warn(
        "A request was refused: it is not signed, its signature is wrong, or its account may not do this."
    )

    # Opening a store
    OPENING_PROGRESS = info("How far the opening of the store is.")
    LOG_RECOVERED = info("The log was checked: `min_offset`, `end`, and whether the last stop was a `clean_stop`.")
    LOG_CUT = warn("Bytes at the end of the log were not valid. They were cut, and are kept in `kept_in`.")
    LOG_DAMAGE_ACCEPTED = warn(
        "The log was opened although bytes are damaged or missing, because an option or a command allows it: `damage`."
    )
    LOG_REPAIR_STARTED = error(
        "The slave's log is damaged. The slave fetches the bytes from its master before it opens the store."
    )
    LOG_REPAIRED = warn("Damaged bytes were replaced with those of the master.")
    LOG_REPAIR_DONE = info("All damaged bytes are repaired.")
    LOG_REPAIR_WAITS = warn("The slave cannot fetch bytes for the repair now, and tries again.")
    LOG_REPAIR_DIFFERS = warn("Near repaired bytes the logs differ where no checksum shows which one is right.")
    LOG_REPAIR_QUEUES_WRONG = info("Queues do not match repaired messages. They are built again as the store opens.")
    DERIVED_REMOVED = warn("Queues and index do not match a part of the log that was repaired. They are built again.")
    LOG_END_UNPROVED = warn(
        "After an unclean stop the end of a slave's log, `start` to `end`, may not have reached the disk. "
        "It is compared with the master's."
    )
    LOG_END_PROVED = info("The end of the log equals the master's.")
    QUEUES_OF_WRONG_TYPE = warn(
        "Queues are not of their topics' type (queue.type). They are rebuilt; the old ones are kept in `kept_in`."
    )
    UNFINISHED_REBUILD_REMOVED = info(
        "A killed rmqha rebuild or reseed had left queues and an index that nobody uses. They are removed."
    )
    RETIRED_NOT_REMOVED = warn("Old queues, or an old index, cannot be removed: `error`. The next start tries again.")
    QUEUE_ENDS_UNREADABLE = warn(
        "The ends of the queues at the last stop cannot be read, so the queues are not compared with them."
    )
    QUEUE_TOO_SHORT = error("A queue has lost units since the last stop. They are rebuilt.")
    QUEUE_DAMAGED = error("A queue is damaged. It is rebuilt from the log; the old one is kept.")
    INDEX_DAMAGED = error("The index is damaged. It is rebuilt from the log; old files are kept.")
    QUEUE_FILE_SIZE_DIFFERS = warn("The queue files have another size than configured. The node keeps their size.")
    INDEX_FILE_SIZE_DIFFERS = warn("Index files have another size than configured. The node keeps them.")
    STORE_WAS_PROMOTED = warn("The node was started as a slave, and runs as a master: its store was promoted.")

    # The log, queues and index of a running node
    LOG_DELETED = info("The oldest segment is deleted: `start`, `end`.")
    LOG_HELD = warn("A segment is due for deletion, but a slave's slot still holds it.")
    NOTHING_DELETED = error("Old files could not be deleted.")
    DISK_FULL = warn("The disk is too full: the node accepts no messages.")
    DISK_HAS_ROOM = warn("The disk has room again: the node accepts messages.")
    PUT_REFUSED_DISK_FULL = error("A message was refused, because the disk is full. Others are too, until one fits.")
    WAITS_FOR_ROOM = error(
        "The disk is full, so `what` could not be written. The node runs on, and tries again by itself until it can."
    )
    FLUSH_CALLBACK_FAILED = critical("A bug in what follows a flush of the log.")
    DISPATCH_PROGRESS = info("How far queues and index are, when they are behind the log.")
    DISPATCH_DONE = info("Queues and index have caught up with the log.")
    DISPATCH_WAITS_FOR_DISK = error(
        "Queues and index wait for room on the disk. Consumers do not see the latest messages."
    )
    DISPATCH_SKIPS = warn("Queues and index skip a part of the log that was deleted.")
    LOG_DAMAGE_SKIPPED = error("Bytes of the log are not messages, and are in no queue. rmqha verify shows details.")
    QUEUE_GAP = error("A queue has no units before a message. rmqha rebuild builds it again.")
    MESSAGE_NOT_QUEUED = error("A message of the log is in no queue, for the given reason.")
    MESSAGE_PROBLEMS_COUNTED = error(
        "How many more messages are in no queue, or leave a gap, that had no line of their own."
    )

    # A slave and its master
    SLAVE_STATE = info("The slave entered a state: `state`, `reason`. See the states of a slave.")
    SLAVE_VERDICT = error("The logs do not fit together: `state` is GAP, AHEAD or DIVERGED. See the runbook.")
    FORK_FOUND = error("Which record is the first that differs from the master's, after DIVERGED.")
    FORK_NOT_FOUND = warn("The first record that differs could not be found. The verdict stands.")
    MASTER_UNSUITABLE = error("This master cannot be copied with this configuration. `reason` says what to change.")
    MASTER_SILENT = warn("The master sent nothing for haHousekeepingInterval. The slave connects again.")
    MASTER_BROKE_PROTOCOL = warn("The master sent what does not follow the protocol. The slave connects again.")
    CONNECTION_GIVEN_UP = warn(
        "The slave cannot go on with this connection to its master, for the given reason. It connects again."
    )
    CORRUPT_TRANSFER = warn(
        "The master sent bytes that are not a valid record. They are not acknowledged, and the slave connects again."
    )
    MASTER_CONNECTION_FAILED = critical("A bug ended the connection to the master.")
    MASTER_CONNECTION_LOST = info("The connection to the master has ended: `reason`.")
    NOT_CONNECTED = warn("A connection failed: `what` names the other end. It is tried again.")
    RECONNECTING = info("When the next attempt to connect is made.")
    RECONNECTING_QUIETLY = info("From now on failed attempts share one line.")
    TRANSFER_REQUESTED = info("The slave asks its master to start at `request_offset`.")
    CATCH_UP_PROGRESS = info("How far the slave has copied, the rate, and the time left.")
    QUEUES_PROGRESS = info("With --once: the log is copied, queues and index are not complete.")
    MASTER_WARNING = warn("The master has a setting that an operator should know about.")
    MASTER_REMOTING_SILENT = warn("The master's remoting port does not answer. The slave uses only its HA port.")
    MASTER_ACL_REFUSES = warn(
        "The master's ACL refuses this slave. The log is copied; topics, groups and offsets are not."
    )
    MASTER_PROBE_FAILED = info("The master did not answer a probe of its HA port.")
    MASTER_POLL_FAILED = critical("A bug in the periodic look at the master.")
    DERIVED_BEGINS_AGAIN = info(
        "The log was empty and begins before the end of an earlier log. Queues and index begin again, too."
    )
    SEGMENT_SIZE_ADOPTED = info("The slave uses the master's segment size.")
    SEGMENT_SIZE_UNKNOWN = warn("The master's segment size is not known. If it has another size, configure it.")
    SEGMENT_SIZE_INVALID = warn("The master's segment size is out of range, and not used.")
    FILE_SIZES_UNUSABLE = warn("The master's sizes of queue and index files cannot be used.")
    LOG_SET_ASIDE = warn(
        "The old log is set aside, and the copy starts again: by --on-gap=reseed, or by rmqha cluster reinit."
    )
    REWOUND = warn("The slave cut what its master does not have. The bytes are kept in `kept`.")
    NOT_REWOUND = error("The slave could not rewind its log, for the given reason. It tries again.")
    PROMOTION_STARTED = warn("The slave is promoted, and stops following its master.")
    MASTER_FOUND_BY_NOBODY = warn("No name server knows a promoted master: clients do not find it.")
    POPPED_ABANDONED = warn("The new master does not give messages again that POP consumers of 5.x hold: `count`.")
    PROMOTED = warn("The node is the master now: `role`, `epoch`, `end`.")

    # A master and its slaves
    SLAVE_CONNECTED = info("A slave, or a stranger, connected to the HA port.")
    SLAVE_TRANSFER_STARTED = info(
        "The first report of a slave was accepted: `offset` is what it asks for, `start` where sending starts."
    )
    SLAVE_GONE = info("The connection of a slave has ended: `ack_offset`, `reason`.")
    SLAVE_SILENT = warn("A slave sent no report for haHousekeepingInterval. It is disconnected.")
    SLAVE_AHEAD = warn("A slave asks for bytes after the end of this log. It is disconnected.")
    SLAVE_TOO_OLD = warn("A slave asks for bytes that were deleted. It is disconnected.")
    SLAVE_REPORT_INVALID = warn("A peer sent a report that no slave sends. It is disconnected.")
    SLAVE_USES_TLS = warn("A peer starts TLS on a port without TLS. It is disconnected.")
    FAILOVER_STATE = info("The node's state in its failover cluster changed: `old`, `new`.")
    FAILOVER_CANDIDATE = info("The leader is gone. The node has closed its connection to it, and tries for the lead.")
    FAILOVER_LEADS = warn("The node leads its failover cluster: `epoch`, `cause`.")
    FAILOVER_FENCED = warn("The node has lost the lead: it takes no more messages.")
    FAILOVER_KEYS_WRITTEN = warn("The coordinator had lost the leader's keys, and the leader has written them again.")
    FAILOVER_SETTINGS_WRITTEN = warn(
        "The coordinator had lost the cluster's `settings`, and the leader has written them again."
    )
    FAILOVER_WAITS = info("The coordinator does not know that the node stops: it did not answer.")
    FAILOVER_BUG = critical("A bug: the node's part in its failover cluster ended.")
    PROMISE_NOT_GIVEN = warn(
        "The coordinator does not answer, and a member does not promise to wait: `member`, `reason`."
    )
    SYNC_SET = info("The members that each put waits for changed: `members`.")
    COORDINATOR_PROBLEM = warn(
        "The coordinator does not answer, or its keys cannot be used. The leader goes on while all other members "
        "that it has ever heard of promise not to lead."
    )
    COORDINATOR_ANSWERS = info("Failover goes on: the node could read its cluster's keys.")
    SLAVE_NO_MEMBER = warn(
        "A slave says that it is a member of this failover cluster, but the coordinator does not know it, or it "
        "follows another epoch: `epoch`."
    )
    SLAVE_PLACE_TAKEN = warn("A connection without a report was closed, because a new one needs its place.")
    PEER_REFUSED = warn(
        "A port refused a peer because of its address or certificate: `host`, `reason`. See --allow-slaves and "
        "--tls-verify-slaves."
    )
    SLAVE_LIMIT_REACHED = warn("The HA port has its maximum of connections: a peer is refused.")
    SLAVES_COUNTED = warn("How many connections without a report had no lines of their own.")
    REFUSALS_NOT_LOGGED = warn("Many refusals were logged: further ones are not, for a while.")
    HEARTBEATS_FAILED = critical("A bug ended the heartbeats to a slave. It is disconnected.")
    SLAVE_IN_SYNC = info("With readUpTo=confirmed: consumers read what this slave holds.")
    SLAVE_OUT_OF_SYNC = info("With readUpTo=confirmed: this slave no longer counts.")
    READS_WAIT = warn("With readUpTo=confirmed: consumers wait, because slaves do not hold messages.")
    READS_GO_ON = info("With readUpTo=confirmed: consumers read on.")
    CONFIRMED_OFFSET_KNOWN = info("Slave: the master says what is confirmed.")
    CONFIRMED_OFFSET_UNKNOWN = warn(
        "Slave with readUpTo=confirmed: consumers read no further here, because the master does not say what is "
        "confirmed."
    )
    CONFIRMED_SYNC_FAILED = critical("A bug ended the requests for what is confirmed.")

    # Topics, groups and offsets that a slave copies
    TABLES_SYNC_STARTED = info("The slave copies topics, groups and offsets of this master.")
    TABLES_NOT_COPIED = warn("Tables of the master are not copied: `tables`, `reason`.")
    TABLES_COPIED_AGAIN = info("Tables that were not copied are copied again.")
    TABLES_ADDRESS_INVALID = error("The master's remoting address is invalid.")
    TABLES_SYNC_FAILED = critical("A bug ended one copy of the master's tables.")
    MASTER_OFFSETS_MOVED_BACK = warn("The master's consumer offsets are lower than those that this slave had.")

    # Names of hosts
    NAME_UNKNOWN = warn(
        "A name of our own has no address yet, so the process waits: `what` is the setting, `name`, `reason`."
    )
    NAME_FOUND = info("A name of our own has an address now: `what`, `name`, `address`.")

    # Name servers
    REGISTERED = info("The broker is registered with a name server: `name`.")
    NOT_REGISTERED = warn("The broker is not registered with a name server: clients may not find it.")
    REGISTRATION_WITHDRAWN = warn("The broker leaves a name server, because clients must not read here: `reason`.")
    RIVAL_BROKER = warn("Another broker is registered under this broker's name and id: stop one of the two at once.")
    RIVAL_GONE = info("The other broker is no longer registered in this one's place.")
    MASTER_FOUND = info("The name servers know the master: `master`, `ha`.")
    MASTER_NOT_FOUND = info("No name server knows a live master.")
    OLD_MASTER_REFUSED = warn(
        "Name server: a master of an older epoch wanted to register: `address`, `epoch`, `leader`, `known`."
    )
    STRANGER_REFUSED = warn("Name server: a peer may not do what it asked for: `host`, `reason`. See name-servers.md.")
    BROKER_REGISTERED = info("Name server: a broker registered: `name`, `id`, `address`.")
    BROKER_GONE = info("Name server: a broker is gone: `name`, `id`, `address`.")
    TOPICS_NOT_FORGOTTEN = critical("Name server: a bug. Topics of a gone broker stay.")

    # The coordinator of failover
    COORDINATOR_UNREACHABLE = warn("No endpoint of the coordinator answers a call. `reason` is that of the last one.")
    COORDINATOR_REACHABLE = info("The coordinator answers again.")
    COORDINATOR_CHANGED = warn(
        "The coordinator has another cluster id than before: it has lost its keys, or it is another one."
    )
    WITNESS_OPEN_TO_ALL = warn(
        "The witness listens beyond loopback without a login, a list of addresses or client certificates."
    )
    COORDINATOR_WENT_BACK = warn(
        "etcd answers with an older raft term than before: it was put back from a copy. Its keys count only if members "
        "find in them what they know."
    )
    WITNESS_CREATED = warn(
        "The witness starts with no keys, as a new cluster. Its folder had no journal. See failover.md."
    )
    WITNESS_RENEWED = error(
        "The witness's journal does not have all that was answered (`reason`). It goes on as another cluster, so that "
        "no node leads from keys that are too old. See failover.md."
    )
    WITNESS_OPENED = info("The witness has read its journal: `keys`, `leases`, `revision`.")
    WITNESS_TAIL_CUT = warn(
        "The last entry of the witness's journal was not written as a whole. It is kept in `kept`, and cut."
    )
    WITNESS_DISK_FULL = error("The witness cannot write its journal, and refuses writes until it can.")
    WITNESS_DISK_WORKS = info("The witness writes its journal again.")
    WITNESS_FAILED = critical("The disk of the witness fails. It answers nothing until the process is started again.")
    WITNESS_JOURNAL_LONG = warn(
        "The witness's journal cannot be replaced by a shorter one now. It is used further, and this is tried again."
    )
    WITNESS_PAUSED = warn("The witness did not run for `seconds`. Each lease ends later by this time.")
    WITNESS_LOGIN_REFUSED = warn("A login at the witness was refused: `host`.")

    # A broker and its clients
    PEER_BROKE_PROTOCOL = warn(
        "A remoting connection was closed: an invalid or too long frame, or a peer that does not read its answers."
    )
    CONNECTIONS_CLOSED_FOR_MEMORY = warn("Connections were closed to limit the memory of a port.")
    REQUEST_FAILED = critical("A bug: a request could not be answered. `code` is its request code.")
    ANSWER_NOT_SENT = error("An answer cannot be encoded, and was not sent.")
    ANSWER_UNEXPECTED = debug("An answer came that no call waits for.")
    POP_REFUSED = warn("A consumer uses POP, which this broker does not support. It gets no messages.")
    PULL_UNREADABLE = error("A pull failed, because messages cannot be read from the disk.")
    PULL_OUT_OF_RANGE = warn("A group reads a queue at an offset that it does not have.")
    ADMIN_CHANGE = info("An administrator creates, changes or deletes a topic or a group.")
    TOPICS_DELETED = info("Topics were deleted with their queues.")
    STALE_OFFSETS_DROPPED = info(
        "A broker that died while it deleted a topic drops what groups had read of it when it starts again."
    )
    QUEUE_STARTS_AGAIN = warn(
        "A queue of a Java master starts again from 0, but its topic was not deleted. Our queue keeps its messages."
    )
    DELETION_UNKNOWN = debug(
        "A Java master does not say yet whether it has deleted a topic of which a queue starts again from 0."
    )
    DELETION_NOT_TOLD = warn(
        "A Java master does not let its slave ask whether it has deleted a topic of which a queue starts again from 0."
    )
    DELETIONS_NEVER_TOLD = warn(
        "A slave is promoted before its Java master has said whether it had deleted some topics. All messages stay."
    )
    CLEANING_REQUESTED = warn("An administrator asks for cleaning.")
    OFFSETS_CLONED = warn("An administrator gives a group the offsets of another one.")
    OFFSETS_RESET = warn("An administrator resets the offsets of a group.")
    OFFSET_MOVED_BACK = warn("A client moved a group's offset back.")
    OFFSETS_NOT_WRITTEN = error("Consumer offsets could not be written to the disk.")
    TABLE_NOT_WRITTEN = error("A table, such as that of the topics, could not be written.")
    TABLE_CALLBACK_FAILED = critical("A bug in what follows the write of a table.")
    GROUP_CREATED = info("A consumer group was created.")
    NEW_NAMES_REFUSED = warn("New topics or groups were refused: too many, or too fast.")
    NEW_NAMES_NOT_LOGGED = info("Many topics or groups were created: the next ones have no line.")
    QUEUE_LOCK_CHANGED = info("A consumer locks or unlocks a queue for orderly consumption.")
    CLIENT_SILENT = warn("A client sent no heartbeat for two minutes. It is disconnected.")
    CLIENT_OFFSETS_UNKNOWN = warn("A consumer does not answer where it reads.")
    CLIENTS_NOT_NOTIFIED = critical(
        "A bug: consumers were not notified of a change of their group. They see it within 20 seconds anyway."
    )
    CLIENT_NOT_REMOVED = critical("A bug: a closed connection stays in its groups.")
    DELAY_LEVEL_PAUSED = critical("The delivery of delayed messages failed. It is tried again soon.")
    DELAYED_MESSAGE_INVALID = error("A delayed message names no topic. It is not delivered.")
    DELAYED_MESSAGE_NOT_DELIVERED = warn(
        "A delayed message could not be stored: `status`. It is tried again, unless no try can succeed."
    )
    TIMERS_READ = info(
        "A master reads the timer messages of RocketMQ 5 that may wait, `count` of them. It delivers none before it "
        "has read all."
    )
    TIMERS_PAUSED = critical("The delivery of timer messages failed. It is tried again soon.")
    TIMER_MESSAGE_INVALID = error("A timer message has no valid time, or names no topic. It is not delivered.")
    TIMER_MESSAGES_GONE = error(
        "Timer messages are due, `count` of them, but the log does not have them any more: retention has deleted them, "
        "for example because the disk was nearly full, or they are damaged."
    )
    TIMER_MESSAGE_NOT_DELIVERED = warn(
        "A timer message could not be stored: `status`. It is tried again, unless no try can succeed."
    )
    OPERATION_INVALID = error("A record that should end transactions is invalid.")
    TRANSACTION_UNDECIDED = info("A producer does not know yet how a transaction ends.")
    TRANSACTION_CHECKED_AGAIN = warn("An administrator has a transaction checked again that was given up.")
    TRANSACTION_END_NOT_STORED = error("The end of a transaction could not be stored. Its producer will be asked.")
    TRANSACTION_CHECK_FAILED = critical("The check of half messages failed.")
    HALF_MESSAGE_NOT_STORED = warn("A half message could not be put again for a check.")
    DEAD_AT_ONCE = warn(
        "A message that a consumer sent back became a dead letter: its properties leave no room for a later try."
    )
    HALF_MESSAGE_GIVEN_UP = error(
        "A transaction was given up. Its message is kept in a topic of its own, and is not delivered."
    )
    NO_PRODUCER_TO_ASK = warn("No producer of a group is connected that could say how a transaction ends.")

    # rmqha.client
    HANDLER_FAILED = critical("Client: the handler raised an error. The message comes again.")
    HANDLING_FAILED = critical("Client: a bug in the handling of a message.")
    HANDLERS_LEFT = warn("Client: at the stop some handlers did not end in time.")
    MESSAGE_RETRY = info("Client: the handler asked for a message to come again.")
    MESSAGE_BODY_INVALID = error("Client: a body cannot be decompressed. No handler is called.")
    MESSAGE_NOT_GIVEN_BACK = warn("Client: no broker takes a message back now. It is tried again.")
    OLD_ROUTE_USED = warn("Client: no name server answers. The known route is used further.")
    TOPIC_NOT_FOUND = warn("Client: no broker has a topic that is to be consumed.")
    HEARTBEAT_NOT_SENT = warn("Client: a broker did not take a heartbeat.")
    LEAVING_NOT_SENT = info("Client: a broker did not take the message that this client leaves.")
    RESET_INVALID = error("Client: a reset of offsets from a broker cannot be read.")
    QUEUE_OFFSET_RESET = warn("Client: an administrator resets a queue's offset.")
    QUEUE_OFFSET_CORRECTED = warn(
        "Client: a queue does not have the offset to read. It is read from the one that the broker names."
    )
    OFFSETS_NOT_KEPT = warn("Client: a broker did not take consumer offsets. They are sent again.")
    OFFSET_FILE_NOT_WRITTEN = error("Client: the file with offsets cannot be written.")
    REBALANCE_FAILED = critical("Client: a bug while queues were shared out.")
    REBALANCE_POSTPONED = info("Client: the queues of a topic cannot be shared out now.")
    QUEUE_UNREADABLE = warn("Client: a queue cannot be read now. It is tried again.")
    QUEUE_READABLE = info("Client: a queue can be read again.")
    READING_FAILED = critical("Client: a bug ended the reading of a queue.")
    QUEUE_NOT_LEFT = critical("Client: a bug while a queue was left to another client.")
    QUEUE_LOST = warn("Client: another client has locked an orderly queue.")
    QUEUES_NOT_LOCKED = warn("Client: a broker did not lock orderly queues.")
    QUEUES_NOT_UNLOCKED = warn("Client: a broker did not unlock orderly queues.")
    TRANSACTION_END_NOT_SENT = warn("Client: the end of a transaction was not sent. The broker will ask for it.")
    LOCAL_TRANSACTION_FAILED = critical(
        "Client: the code of a transaction raised an error. The broker will ask how it ends."
    )
