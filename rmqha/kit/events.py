"""The names of what the log reports. Each line of a JSON log has one as ``event``; the text of a line may change.

docs/events.md is made from this table.
"""

from enum import StrEnum
from typing import Self

ALARM_LEVELS = ("warn", "error", "critical")


class Event(StrEnum):
    """A kind of event: its name, its level, and what it means.

    Every call of a logger names one: ``log.info("slave {peer} connected", event=Event.SLAVE_CONNECTED, peer=peer)``.
    """

    level: str
    meaning: str

    def __new__(cls, name: str, level: str, meaning: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.level = level
        member.meaning = meaning
        return member

    @property
    def is_alarm(self) -> bool:
        """Whether its level is warn or higher."""
        return self.level in ALARM_LEVELS

    # The process, its ports and its files
    PROCESS_ENDS = "process_ends", "critical", "The process ends by itself. `code` is its exit code, `reason` says why."
    NODE_START_FAILED = "node_start_failed", "critical", "A bug: the node cannot start. It ends."
    NODE_STOPPED = "node_stopped", "info", "The node has closed its store. `offset` is the end of its log."
    OPENING_STOPPED = "opening_stopped", "info", "The node was stopped before its store was open."
    LISTENING = "listening", "info", "A port is open: `purpose`, `port`."
    OPEN_FILES_SHORT = (
        "open_files_short",
        "warn",
        "Too few open files are left, so connections are refused. Raise the limit (ulimit -n, LimitNOFILE).",
    )
    CONNECTION_LIMIT_REACHED = (
        "connection_limit_reached",
        "warn",
        "A remoting port has its maximum of connections, and refuses new ones.",
    )
    CONNECTS_TOO_FAST = (
        "connects_too_fast",
        "warn",
        "An address makes too many new connections to a remoting port in a second. More are refused.",
    )
    LOG_FILE_REOPENED = "log_file_reopened", "info", "After SIGHUP the log goes on in a new file."
    LOG_FILE_NOT_REOPENED = (
        "log_file_not_reopened",
        "error",
        "After SIGHUP the log file cannot be opened. The old file is used further.",
    )
    SYSTEMD_UNREACHABLE = "systemd_unreachable", "warn", "systemd does not get this process's messages."
    ORDER_REFUSED = (
        "order_refused",
        "warn",
        "A user who may not do so tried to give the node an order, such as a promotion.",
    )
    ORDER_FAILED = "order_failed", "critical", "An order, such as a promotion, failed for a reason that nobody foresaw."
    NO_CONTROL_SOCKET = (
        "no_control_socket",
        "warn",
        "The node cannot take orders: rmqha promote does not reach it while it runs.",
    )
    SERVICE_STOP_FAILED = "service_stop_failed", "critical", "A part of the process did not stop cleanly."
    PERIODIC_WORK_FAILED = (
        "periodic_work_failed",
        "critical",
        "Periodic work failed, and is tried again. `purpose` names it.",
    )
    PERIODIC_WORK_RECOVERED = "periodic_work_recovered", "info", "Periodic work that had failed works again."
    CONNECTION_BUG = "connection_bug", "critical", "A bug: a TLS connection was closed because its protocol failed."
    HTTP_REQUEST_FAILED = "http_request_failed", "critical", "A bug: an HTTP request could not be answered."

    # Settings, certificates, keys
    SETTING_WARNING = (
        "setting_warning",
        "warn",
        "A setting is not used, or does something that its user may not expect.",
    )
    SETTING_CHANGED = (
        "setting_changed",
        "warn",
        "A setting of the running node changed, by mqadmin or SIGHUP: `key`, `old`, `new`.",
    )
    SETTINGS_NEED_RESTART = (
        "settings_need_restart",
        "warn",
        "Settings changed in the configuration, and count only from the next start.",
    )
    SETTINGS_NOT_REREAD = (
        "settings_not_reread",
        "error",
        "After SIGHUP the settings stay as they are, because the configuration is invalid.",
    )
    SETTINGS_NOT_KEPT = (
        "settings_not_kept",
        "error",
        "Settings that mqadmin changed could not be written, and are lost at the next start.",
    )
    KEPT_SETTINGS_INVALID = (
        "kept_settings_invalid",
        "error",
        "The file with the settings that mqadmin changed is invalid. It is ignored, and kept under another name.",
    )
    KEPT_SETTING_USED = (
        "kept_setting_used",
        "warn",
        "At the start: a setting differs from the configuration because mqadmin changed it earlier.",
    )
    KEPT_SETTING_DROPPED = (
        "kept_setting_dropped",
        "warn",
        "At the start: the configuration has changed, or the setting cannot change, so mqadmin's change is dropped.",
    )
    KEPT_SETTING_IGNORED = "kept_setting_ignored", "error", "At the start: a value that mqadmin had set is invalid."
    SETTING_CHANGE_REFUSED = (
        "setting_change_refused",
        "warn",
        "A host tried to change settings, and updateBrokerConfigFrom does not allow it.",
    )
    CERTIFICATES_CHANGED = "certificates_changed", "info", "After SIGHUP new connections use other certificates."
    CERTIFICATES_SAME = "certificates_same", "info", "After SIGHUP the certificates are the same as before."
    CERTIFICATES_NOT_REREAD = (
        "certificates_not_reread",
        "error",
        "After SIGHUP the certificates stay as they are, because a file cannot be used.",
    )
    CREDENTIALS_CHANGED = "credentials_changed", "info", "After SIGHUP requests are signed with other keys."
    CREDENTIALS_NOT_REREAD = (
        "credentials_not_reread",
        "error",
        "After SIGHUP the keys of aclFile stay as they are, because the file cannot be used.",
    )
    RELOAD_FAILED = "reload_failed", "critical", "After SIGHUP not everything could be read again."
    TLS_FAILED = "tls_failed", "warn", "A TLS handshake with a server failed: `host`, `reason`."

    # Access control
    ACCOUNTS_READ = "accounts_read", "info", "The files with accounts were read."
    ACCOUNTS_NOT_REREAD = (
        "accounts_not_reread",
        "error",
        "A file with accounts is invalid or missing. The accounts stay as they were until it is correct.",
    )
    ACCOUNTS_WARNING = "accounts_warning", "warn", "The files with accounts have something to correct."
    ACCOUNTS_CHANGED = "accounts_changed", "warn", "An administrator changed accounts or white addresses."
    ACCOUNT_REFUSED = (
        "account_refused",
        "warn",
        "A request was refused: it is not signed, its signature is wrong, or its account may not do this.",
    )

    # Opening a store
    OPENING_PROGRESS = "opening_progress", "info", "How far the opening of the store is."
    LOG_RECOVERED = (
        "log_recovered",
        "info",
        "The log was checked: `min_offset`, `end`, and whether the last stop was a `clean_stop`.",
    )
    LOG_CUT = "log_cut", "warn", "Bytes at the end of the log were not valid. They were cut, and are kept in `kept_in`."
    LOG_DAMAGE_ACCEPTED = (
        "log_damage_accepted",
        "warn",
        "The log was opened although bytes are damaged or missing, because an option or a command allows it: `damage`.",
    )
    LOG_REPAIR_STARTED = (
        "log_repair_started",
        "error",
        "The slave's log is damaged. The slave fetches the bytes from its master before it opens the store.",
    )
    LOG_REPAIRED = "log_repaired", "warn", "Damaged bytes were replaced with those of the master."
    LOG_REPAIR_DONE = "log_repair_done", "info", "All damaged bytes are repaired."
    LOG_REPAIR_WAITS = "log_repair_waits", "warn", "The slave cannot fetch bytes for the repair now, and tries again."
    LOG_REPAIR_DIFFERS = (
        "log_repair_differs",
        "warn",
        "Near repaired bytes the logs differ where no checksum shows which one is right.",
    )
    LOG_REPAIR_QUEUES_WRONG = (
        "log_repair_queues_wrong",
        "info",
        "Queues do not match repaired messages. They are built again as the store opens.",
    )
    DERIVED_REMOVED = (
        "derived_removed",
        "warn",
        "Queues and index do not match a part of the log that was repaired. They are built again.",
    )
    LOG_END_UNPROVED = (
        "log_end_unproved",
        "warn",
        "After an unclean stop the end of a slave's log, `start` to `end`, may not have reached the disk. "
        "It is compared with the master's.",
    )
    LOG_END_PROVED = "log_end_proved", "info", "The end of the log equals the master's."
    QUEUES_OF_WRONG_TYPE = (
        "queues_of_wrong_type",
        "warn",
        "Queues are not of their topics' type (queue.type). They are rebuilt; the old ones are kept in `kept_in`.",
    )
    UNFINISHED_REBUILD_REMOVED = (
        "unfinished_rebuild_removed",
        "info",
        "A killed rmqha rebuild or reseed had left queues and an index that nobody uses. They are removed.",
    )
    RETIRED_NOT_REMOVED = (
        "retired_not_removed",
        "warn",
        "Queues and index of a log that was set aside cannot be removed: `error`. The next start tries again.",
    )
    QUEUE_ENDS_UNREADABLE = (
        "queue_ends_unreadable",
        "warn",
        "The ends of the queues at the last stop cannot be read, so the queues are not compared with them.",
    )
    QUEUE_TOO_SHORT = "queue_too_short", "error", "A queue has lost units since the last stop. They are rebuilt."
    QUEUE_DAMAGED = "queue_damaged", "error", "A queue is damaged. It is rebuilt from the log; the old one is kept."
    INDEX_DAMAGED = "index_damaged", "error", "The index is damaged. It is rebuilt from the log; old files are kept."
    QUEUE_FILE_SIZE_DIFFERS = (
        "queue_file_size_differs",
        "warn",
        "The queue files have another size than configured. The node keeps their size.",
    )
    INDEX_FILE_SIZE_DIFFERS = (
        "index_file_size_differs",
        "warn",
        "Index files have another size than configured. The node keeps them.",
    )
    STORE_WAS_PROMOTED = (
        "store_was_promoted",
        "warn",
        "The node was started as a slave, and runs as a master: its store was promoted.",
    )

    # The log, queues and index of a running node
    LOG_DELETED = "log_deleted", "info", "The oldest segment is deleted: `start`, `end`."
    LOG_HELD = "log_held", "warn", "A segment is due for deletion, but a slave's slot still holds it."
    NOTHING_DELETED = "nothing_deleted", "error", "Old files could not be deleted."
    DISK_FULL = "disk_full", "warn", "The disk is too full: the node accepts no messages."
    DISK_HAS_ROOM = "disk_has_room", "warn", "The disk has room again: the node accepts messages."
    PUT_REFUSED_DISK_FULL = (
        "put_refused_disk_full",
        "error",
        "A message was refused, because the disk is full. Others are too, until one fits.",
    )
    WAITS_FOR_ROOM = (
        "waits_for_room",
        "error",
        "The disk is full, so `what` could not be written. The node runs on, and tries again by itself until it can.",
    )
    FLUSH_CALLBACK_FAILED = "flush_callback_failed", "critical", "A bug in what follows a flush of the log."
    DISPATCH_PROGRESS = "dispatch_progress", "info", "How far queues and index are, when they are behind the log."
    DISPATCH_DONE = "dispatch_done", "info", "Queues and index have caught up with the log."
    DISPATCH_WAITS_FOR_DISK = (
        "dispatch_waits_for_disk",
        "error",
        "Queues and index wait for room on the disk. Consumers do not see the latest messages.",
    )
    DISPATCH_SKIPS = (
        "dispatch_skips",
        "warn",
        "Queues and index skip a part of the log that was deleted.",
    )
    LOG_DAMAGE_SKIPPED = (
        "log_damage_skipped",
        "error",
        "Bytes of the log are not messages, and are in no queue. rmqha verify shows details.",
    )
    QUEUE_GAP = "queue_gap", "error", "A queue has no units before a message. rmqha rebuild builds it again."
    MESSAGE_NOT_QUEUED = "message_not_queued", "error", "A message of the log is in no queue, for the given reason."
    MESSAGE_PROBLEMS_COUNTED = (
        "message_problems_counted",
        "error",
        "How many more messages are in no queue, or leave a gap, that had no line of their own.",
    )

    # A slave and its master
    SLAVE_STATE = "slave_state", "info", "The slave entered a state: `state`, `reason`. See the states of a slave."
    SLAVE_VERDICT = (
        "slave_verdict",
        "error",
        "The logs do not fit together: `state` is GAP, AHEAD or DIVERGED. See the runbook.",
    )
    FORK_FOUND = "fork_found", "error", "Which record is the first that differs from the master's, after DIVERGED."
    FORK_NOT_FOUND = "fork_not_found", "warn", "The first record that differs could not be found. The verdict stands."
    MASTER_UNSUITABLE = (
        "master_unsuitable",
        "error",
        "This master cannot be copied with this configuration. `reason` says what to change.",
    )
    MASTER_SILENT = (
        "master_silent",
        "warn",
        "The master sent nothing for haHousekeepingInterval. The slave connects again.",
    )
    MASTER_BROKE_PROTOCOL = (
        "master_broke_protocol",
        "warn",
        "The master sent what does not follow the protocol. The slave connects again.",
    )
    CONNECTION_GIVEN_UP = (
        "connection_given_up",
        "warn",
        "The slave cannot go on with this connection to its master, for the given reason. It connects again.",
    )
    CORRUPT_TRANSFER = (
        "corrupt_transfer",
        "warn",
        "The master sent bytes that are not a valid record. They are not acknowledged, and the slave connects again.",
    )
    MASTER_CONNECTION_FAILED = "master_connection_failed", "critical", "A bug ended the connection to the master."
    MASTER_CONNECTION_LOST = "master_connection_lost", "info", "The connection to the master has ended: `reason`."
    NOT_CONNECTED = "not_connected", "warn", "A connection failed: `what` names the other end. It is tried again."
    RECONNECTING = "reconnecting", "info", "When the next attempt to connect is made."
    RECONNECTING_QUIETLY = "reconnecting_quietly", "info", "From now on failed attempts share one line."
    TRANSFER_REQUESTED = "transfer_requested", "info", "The slave asks its master to start at `request_offset`."
    CATCH_UP_PROGRESS = "catch_up_progress", "info", "How far the slave has copied, the rate, and the time left."
    QUEUES_PROGRESS = "queues_progress", "info", "With --once: the log is copied, queues and index are not complete."
    MASTER_WARNING = "master_warning", "warn", "The master has a setting that an operator should know about."
    MASTER_REMOTING_SILENT = (
        "master_remoting_silent",
        "warn",
        "The master's remoting port does not answer. The slave uses only its HA port.",
    )
    MASTER_ACL_REFUSES = (
        "master_acl_refuses",
        "warn",
        "The master's ACL refuses this slave. The log is copied; topics, groups and offsets are not.",
    )
    MASTER_PROBE_FAILED = "master_probe_failed", "info", "The master did not answer a probe of its HA port."
    MASTER_POLL_FAILED = "master_poll_failed", "critical", "A bug in the periodic look at the master."
    DERIVED_BEGINS_AGAIN = (
        "derived_begins_again",
        "info",
        "The log was empty and begins before the end of an earlier log. Queues and index begin again, too.",
    )
    SEGMENT_SIZE_ADOPTED = "segment_size_adopted", "info", "The slave uses the master's segment size."
    SEGMENT_SIZE_UNKNOWN = (
        "segment_size_unknown",
        "warn",
        "The master's segment size is not known. If it has another size, configure it.",
    )
    SEGMENT_SIZE_INVALID = "segment_size_invalid", "warn", "The master's segment size is out of range, and not used."
    FILE_SIZES_UNUSABLE = "file_sizes_unusable", "warn", "The master's sizes of queue and index files cannot be used."
    LOG_SET_ASIDE = (
        "log_set_aside",
        "warn",
        "With --on-gap=reseed: the old log is set aside, and the copy starts again.",
    )
    REWOUND = "rewound", "warn", "The slave cut what its master does not have. The bytes are kept in `kept`."
    NOT_REWOUND = "not_rewound", "error", "The slave could not rewind its log, for the given reason. It tries again."
    PROMOTION_STARTED = "promotion_started", "warn", "The slave is promoted, and stops following its master."
    MASTER_FOUND_BY_NOBODY = (
        "master_found_by_nobody",
        "warn",
        "No name server knows a promoted master: clients do not find it.",
    )
    POPPED_ABANDONED = (
        "popped_abandoned",
        "warn",
        "The new master does not give messages again that POP consumers of 5.x hold: `count`.",
    )
    PROMOTED = "promoted", "warn", "The node is the master now: `role`, `epoch`, `end`."

    # A master and its slaves
    SLAVE_CONNECTED = "slave_connected", "info", "A slave, or a stranger, connected to the HA port."
    SLAVE_TRANSFER_STARTED = (
        "slave_transfer_started",
        "info",
        "The first report of a slave was accepted: `offset` is what it asks for, `start` where sending starts.",
    )
    SLAVE_GONE = "slave_gone", "info", "The connection of a slave has ended: `ack_offset`, `reason`."
    SLAVE_SILENT = "slave_silent", "warn", "A slave sent no report for haHousekeepingInterval. It is disconnected."
    SLAVE_AHEAD = "slave_ahead", "warn", "A slave asks for bytes after the end of this log. It is disconnected."
    SLAVE_TOO_OLD = "slave_too_old", "warn", "A slave asks for bytes that were deleted. It is disconnected."
    SLAVE_REPORT_INVALID = (
        "slave_report_invalid",
        "warn",
        "A peer sent a report that no slave sends. It is disconnected.",
    )
    SLAVE_USES_TLS = "slave_uses_tls", "warn", "A peer starts TLS on a port without TLS. It is disconnected."
    FAILOVER_STATE = "failover_state", "info", "The node's state in its failover cluster changed: `old`, `new`."
    FAILOVER_CANDIDATE = (
        "failover_candidate",
        "info",
        "The leader is gone. The node has closed its connection to it, and tries for the lead.",
    )
    FAILOVER_LEADS = "failover_leads", "warn", "The node leads its failover cluster: `epoch`, `cause`."
    FAILOVER_FENCED = "failover_fenced", "warn", "The node has lost the lead: it takes no more messages."
    FAILOVER_KEYS_WRITTEN = (
        "failover_keys_written",
        "warn",
        "The coordinator had lost the leader's keys, and the leader has written them again.",
    )
    FAILOVER_SETTINGS_WRITTEN = (
        "failover_settings_written",
        "warn",
        "The coordinator had lost the cluster's `settings`, and the leader has written them again.",
    )
    FAILOVER_WAITS = "failover_waits", "info", "The coordinator does not know that the node stops: it did not answer."
    FAILOVER_BUG = "failover_bug", "critical", "A bug: the node's part in its failover cluster ended."
    PROMISE_NOT_GIVEN = (
        "promise_not_given",
        "warn",
        "The coordinator does not answer, and a member does not promise to wait: `member`, `reason`.",
    )
    SYNC_SET = "sync_set", "info", "The members that each put waits for changed: `members`."
    COORDINATOR_PROBLEM = (
        "coordinator_problem",
        "warn",
        "The coordinator does not answer, or its keys cannot be used. The leader goes on while all members of the sync "
        "set answer.",
    )
    COORDINATOR_ANSWERS = "coordinator_answers", "info", "Failover goes on: the node could read its cluster's keys."
    SLAVE_NO_MEMBER = (
        "slave_no_member",
        "warn",
        "A slave says that it is a member of this failover cluster, but the coordinator does not know it, or it "
        "follows another epoch: `epoch`.",
    )
    SLAVE_PLACE_TAKEN = (
        "slave_place_taken",
        "warn",
        "A connection without a report was closed, because a new one needs its place.",
    )
    PEER_REFUSED = (
        "peer_refused",
        "warn",
        "A port refused a peer because of its address or certificate: `host`, `reason`. See --allow-slaves and "
        "--tls-verify-slaves.",
    )
    SLAVE_LIMIT_REACHED = (
        "slave_limit_reached",
        "warn",
        "The HA port has its maximum of connections: a peer is refused.",
    )
    SLAVES_COUNTED = (
        "slaves_counted",
        "warn",
        "How many connections without a report had no lines of their own.",
    )
    REFUSALS_NOT_LOGGED = "refusals_not_logged", "warn", "Many refusals were logged: further ones are not, for a while."
    HEARTBEATS_FAILED = "heartbeats_failed", "critical", "A bug ended the heartbeats to a slave. It is disconnected."
    SLAVE_IN_SYNC = "slave_in_sync", "info", "With readUpTo=confirmed: consumers read what this slave holds."
    SLAVE_OUT_OF_SYNC = "slave_out_of_sync", "info", "With readUpTo=confirmed: this slave no longer counts."
    READS_WAIT = "reads_wait", "warn", "With readUpTo=confirmed: consumers wait, because slaves do not hold messages."
    READS_GO_ON = "reads_go_on", "info", "With readUpTo=confirmed: consumers read on."
    CONFIRMED_OFFSET_KNOWN = "confirmed_offset_known", "info", "Slave: the master says what is confirmed."
    CONFIRMED_OFFSET_UNKNOWN = (
        "confirmed_offset_unknown",
        "warn",
        "Slave with readUpTo=confirmed: consumers read no further here, because the master does not say what is "
        "confirmed.",
    )
    CONFIRMED_SYNC_FAILED = "confirmed_sync_failed", "critical", "A bug ended the requests for what is confirmed."

    # Topics, groups and offsets that a slave copies
    TABLES_SYNC_STARTED = "tables_sync_started", "info", "The slave copies topics, groups and offsets of this master."
    TABLES_NOT_COPIED = "tables_not_copied", "warn", "Tables of the master are not copied: `tables`, `reason`."
    TABLES_COPIED_AGAIN = "tables_copied_again", "info", "Tables that were not copied are copied again."
    TABLES_ADDRESS_INVALID = "tables_address_invalid", "error", "The master's remoting address is invalid."
    TABLES_SYNC_FAILED = "tables_sync_failed", "critical", "A bug ended one copy of the master's tables."
    MASTER_OFFSETS_MOVED_BACK = (
        "master_offsets_moved_back",
        "warn",
        "The master's consumer offsets are lower than those that this slave had.",
    )

    # Names of hosts
    NAME_UNKNOWN = (
        "name_unknown",
        "warn",
        "A name of our own has no address yet, so the process waits: `what` is the setting, `name`, `reason`.",
    )
    NAME_FOUND = "name_found", "info", "A name of our own has an address now: `what`, `name`, `address`."

    # Name servers
    REGISTERED = "registered", "info", "The broker is registered with a name server: `name`."
    NOT_REGISTERED = (
        "not_registered",
        "warn",
        "The broker is not registered with a name server: clients may not find it.",
    )
    REGISTRATION_WITHDRAWN = (
        "registration_withdrawn",
        "warn",
        "The broker leaves a name server, because clients must not read here: `reason`.",
    )
    RIVAL_BROKER = (
        "rival_broker",
        "warn",
        "Another broker is registered under this broker's name and id: stop one of the two at once.",
    )
    RIVAL_GONE = "rival_gone", "info", "The other broker is no longer registered in this one's place."
    MASTER_FOUND = "master_found", "info", "The name servers know the master: `master`, `ha`."
    MASTER_NOT_FOUND = "master_not_found", "info", "No name server knows a live master."
    OLD_MASTER_REFUSED = (
        "old_master_refused",
        "warn",
        "Name server: a master of an older epoch wanted to register: `address`, `epoch`, `leader`, `known`.",
    )
    STRANGER_REFUSED = (
        "stranger_refused",
        "warn",
        "Name server: a peer may not do what it asked for: `host`, `reason`. See name-servers.md.",
    )
    BROKER_REGISTERED = "broker_registered", "info", "Name server: a broker registered: `name`, `id`, `address`."
    BROKER_GONE = "broker_gone", "info", "Name server: a broker is gone: `name`, `id`, `address`."
    TOPICS_NOT_FORGOTTEN = "topics_not_forgotten", "critical", "Name server: a bug. Topics of a gone broker stay."

    # The coordinator of failover
    COORDINATOR_UNREACHABLE = (
        "coordinator_unreachable",
        "warn",
        "No endpoint of the coordinator answers a call. `reason` is that of the last one.",
    )
    COORDINATOR_REACHABLE = "coordinator_reachable", "info", "The coordinator answers again."
    COORDINATOR_CHANGED = (
        "coordinator_changed",
        "warn",
        "The coordinator has another cluster id than before: it has lost its keys, or it is another one.",
    )
    WITNESS_OPEN_TO_ALL = (
        "witness_open_to_all",
        "warn",
        "The witness listens beyond loopback without a login, a list of addresses or client certificates.",
    )
    COORDINATOR_WENT_BACK = (
        "coordinator_went_back",
        "warn",
        "etcd answers with an older raft term than before: it was put back from a copy. Its keys count only if members "
        "find in them what they know.",
    )
    WITNESS_CREATED = (
        "witness_created",
        "warn",
        "The witness starts with no keys, as a new cluster. Its folder had no journal. See failover.md.",
    )
    WITNESS_RENEWED = (
        "witness_renewed",
        "error",
        "The witness's journal does not have all that was answered (`reason`). It goes on as another cluster, so that "
        "no node leads from keys that are too old. See failover.md.",
    )
    WITNESS_OPENED = "witness_opened", "info", "The witness has read its journal: `keys`, `leases`, `revision`."
    WITNESS_TAIL_CUT = (
        "witness_tail_cut",
        "warn",
        "The last entry of the witness's journal was not written as a whole. It is kept in `kept`, and cut.",
    )
    WITNESS_DISK_FULL = (
        "witness_disk_full",
        "error",
        "The witness cannot write its journal, and refuses writes until it can.",
    )
    WITNESS_DISK_WORKS = "witness_disk_works", "info", "The witness writes its journal again."
    WITNESS_FAILED = (
        "witness_failed",
        "critical",
        "The disk of the witness fails. It answers nothing until the process is started again.",
    )
    WITNESS_JOURNAL_LONG = (
        "witness_journal_long",
        "warn",
        "The witness's journal cannot be replaced by a shorter one now. It is used further, and this is tried again.",
    )
    WITNESS_PAUSED = (
        "witness_paused",
        "warn",
        "The witness did not run for `seconds`. Each lease ends later by this time.",
    )
    WITNESS_LOGIN_REFUSED = "witness_login_refused", "warn", "A login at the witness was refused: `host`."

    # A broker and its clients
    PEER_BROKE_PROTOCOL = (
        "peer_broke_protocol",
        "warn",
        "A remoting connection was closed: an invalid or too long frame, or a peer that does not read its answers.",
    )
    CONNECTIONS_CLOSED_FOR_MEMORY = (
        "connections_closed_for_memory",
        "warn",
        "Connections were closed to limit the memory of a port.",
    )
    REQUEST_FAILED = "request_failed", "critical", "A bug: a request could not be answered. `code` is its request code."
    ANSWER_NOT_SENT = "answer_not_sent", "error", "An answer cannot be encoded, and was not sent."
    ANSWER_UNEXPECTED = "answer_unexpected", "debug", "An answer came that no call waits for."
    POP_REFUSED = "pop_refused", "warn", "A consumer uses POP, which this broker does not support. It gets no messages."
    PULL_UNREADABLE = "pull_unreadable", "error", "A pull failed, because messages cannot be read from the disk."
    PULL_OUT_OF_RANGE = "pull_out_of_range", "warn", "A group reads a queue at an offset that it does not have."
    ADMIN_CHANGE = "admin_change", "info", "An administrator creates, changes or deletes a topic or a group."
    TOPICS_DELETED = "topics_deleted", "info", "Topics were deleted with their queues."
    STALE_OFFSETS_DROPPED = (
        "stale_offsets_dropped",
        "info",
        "A broker that died while it deleted a topic drops what groups had read of it when it starts again.",
    )
    QUEUE_STARTS_AGAIN = (
        "queue_starts_again",
        "warn",
        "A queue of a Java master starts again from 0, but its topic was not deleted. Our queue keeps its messages.",
    )
    DELETION_UNKNOWN = (
        "deletion_unknown",
        "debug",
        "A Java master does not say yet whether it has deleted a topic of which a queue starts again from 0.",
    )
    DELETION_NOT_TOLD = (
        "deletion_not_told",
        "warn",
        "A Java master does not let its slave ask whether it has deleted a topic of which a queue starts again from 0.",
    )
    DELETIONS_NEVER_TOLD = (
        "deletions_never_told",
        "warn",
        "A slave is promoted before its Java master has said whether it had deleted some topics. All messages stay.",
    )
    CLEANING_REQUESTED = "cleaning_requested", "warn", "An administrator asks for cleaning."
    OFFSETS_CLONED = "offsets_cloned", "warn", "An administrator gives a group the offsets of another one."
    OFFSETS_RESET = "offsets_reset", "warn", "An administrator resets the offsets of a group."
    OFFSET_MOVED_BACK = "offset_moved_back", "warn", "A client moved a group's offset back."
    OFFSETS_NOT_WRITTEN = "offsets_not_written", "error", "Consumer offsets could not be written to the disk."
    TABLE_NOT_WRITTEN = "table_not_written", "error", "A table, such as that of the topics, could not be written."
    TABLE_CALLBACK_FAILED = "table_callback_failed", "critical", "A bug in what follows the write of a table."
    GROUP_CREATED = "group_created", "info", "A consumer group was created."
    NEW_NAMES_REFUSED = "new_names_refused", "warn", "New topics or groups were refused: too many, or too fast."
    NEW_NAMES_NOT_LOGGED = (
        "new_names_not_logged",
        "info",
        "Many topics or groups were created: the next ones have no line.",
    )
    QUEUE_LOCK_CHANGED = "queue_lock_changed", "info", "A consumer locks or unlocks a queue for orderly consumption."
    CLIENT_SILENT = "client_silent", "warn", "A client sent no heartbeat for two minutes. It is disconnected."
    CLIENT_OFFSETS_UNKNOWN = "client_offsets_unknown", "warn", "A consumer does not answer where it reads."
    CLIENTS_NOT_NOTIFIED = (
        "clients_not_notified",
        "critical",
        "A bug: consumers were not notified of a change of their group. They see it within 20 seconds anyway.",
    )
    CLIENT_NOT_REMOVED = "client_not_removed", "critical", "A bug: a closed connection stays in its groups."
    DELAY_LEVEL_PAUSED = (
        "delay_level_paused",
        "critical",
        "The delivery of delayed messages failed. It is tried again soon.",
    )
    DELAYED_MESSAGE_INVALID = (
        "delayed_message_invalid",
        "error",
        "A delayed message names no topic. It is not delivered.",
    )
    DELAYED_MESSAGE_NOT_DELIVERED = (
        "delayed_message_not_delivered",
        "warn",
        "A delayed message could not be stored: `status`. It is tried again, unless no try can succeed.",
    )
    TIMERS_READ = (
        "timers_read",
        "info",
        "A master reads the timer messages of RocketMQ 5 that may wait, `count` of them. It delivers none before it "
        "has read all.",
    )
    TIMERS_PAUSED = (
        "timers_paused",
        "critical",
        "The delivery of timer messages failed. It is tried again soon.",
    )
    TIMER_MESSAGE_INVALID = (
        "timer_message_invalid",
        "error",
        "A timer message has no valid time, or names no topic. It is not delivered.",
    )
    TIMER_MESSAGES_GONE = (
        "timer_messages_gone",
        "error",
        "Timer messages are due, `count` of them, but the log does not have them any more: retention has deleted them, "
        "for example because the disk was nearly full, or they are damaged.",
    )
    TIMER_MESSAGE_NOT_DELIVERED = (
        "timer_message_not_delivered",
        "warn",
        "A timer message could not be stored: `status`. It is tried again, unless no try can succeed.",
    )
    OPERATION_INVALID = "operation_invalid", "error", "A record that should end transactions is invalid."
    TRANSACTION_UNDECIDED = "transaction_undecided", "info", "A producer does not know yet how a transaction ends."
    TRANSACTION_CHECKED_AGAIN = (
        "transaction_checked_again",
        "warn",
        "An administrator has a transaction checked again that was given up.",
    )
    TRANSACTION_END_NOT_STORED = (
        "transaction_end_not_stored",
        "error",
        "The end of a transaction could not be stored. Its producer will be asked.",
    )
    TRANSACTION_CHECK_FAILED = "transaction_check_failed", "critical", "The check of half messages failed."
    HALF_MESSAGE_NOT_STORED = "half_message_not_stored", "warn", "A half message could not be put again for a check."
    DEAD_AT_ONCE = (
        "dead_at_once",
        "warn",
        "A message that a consumer sent back became a dead letter: its properties leave no room for a later try.",
    )
    HALF_MESSAGE_GIVEN_UP = (
        "half_message_given_up",
        "error",
        "A transaction was given up. Its message is kept in a topic of its own, and is not delivered.",
    )
    NO_PRODUCER_TO_ASK = (
        "no_producer_to_ask",
        "warn",
        "No producer of a group is connected that could say how a transaction ends.",
    )

    # rmqha.client
    HANDLER_FAILED = "handler_failed", "critical", "Client: the handler raised an error. The message comes again."
    HANDLING_FAILED = "handling_failed", "critical", "Client: a bug in the handling of a message."
    HANDLERS_LEFT = "handlers_left", "warn", "Client: at the stop some handlers did not end in time."
    MESSAGE_RETRY = "message_retry", "info", "Client: the handler asked for a message to come again."
    MESSAGE_BODY_INVALID = (
        "message_body_invalid",
        "error",
        "Client: a body cannot be decompressed. No handler is called.",
    )
    MESSAGE_NOT_GIVEN_BACK = (
        "message_not_given_back",
        "warn",
        "Client: no broker takes a message back now. It is tried again.",
    )
    OLD_ROUTE_USED = "old_route_used", "warn", "Client: no name server answers. The known route is used further."
    TOPIC_NOT_FOUND = "topic_not_found", "warn", "Client: no broker has a topic that is to be consumed."
    HEARTBEAT_NOT_SENT = "heartbeat_not_sent", "warn", "Client: a broker did not take a heartbeat."
    LEAVING_NOT_SENT = "leaving_not_sent", "info", "Client: a broker did not take the message that this client leaves."
    RESET_INVALID = "reset_invalid", "error", "Client: a reset of offsets from a broker cannot be read."
    QUEUE_OFFSET_RESET = "queue_offset_reset", "warn", "Client: an administrator resets a queue's offset."
    QUEUE_OFFSET_CORRECTED = (
        "queue_offset_corrected",
        "warn",
        "Client: a queue does not have the offset to read. It is read from the one that the broker names.",
    )
    OFFSETS_NOT_KEPT = (
        "offsets_not_kept",
        "warn",
        "Client: a broker did not take consumer offsets. They are sent again.",
    )
    OFFSET_FILE_NOT_WRITTEN = "offset_file_not_written", "error", "Client: the file with offsets cannot be written."
    REBALANCE_FAILED = "rebalance_failed", "critical", "Client: a bug while queues were shared out."
    REBALANCE_POSTPONED = "rebalance_postponed", "info", "Client: the queues of a topic cannot be shared out now."
    QUEUE_UNREADABLE = "queue_unreadable", "warn", "Client: a queue cannot be read now. It is tried again."
    QUEUE_READABLE = "queue_readable", "info", "Client: a queue can be read again."
    READING_FAILED = "reading_failed", "critical", "Client: a bug ended the reading of a queue."
    QUEUE_NOT_LEFT = "queue_not_left", "critical", "Client: a bug while a queue was left to another client."
    QUEUE_LOST = "queue_lost", "warn", "Client: another client has locked an orderly queue."
    QUEUES_NOT_LOCKED = "queues_not_locked", "warn", "Client: a broker did not lock orderly queues."
    QUEUES_NOT_UNLOCKED = "queues_not_unlocked", "warn", "Client: a broker did not unlock orderly queues."
    TRANSACTION_END_NOT_SENT = (
        "transaction_end_not_sent",
        "warn",
        "Client: the end of a transaction was not sent. The broker will ask for it.",
    )
    LOCAL_TRANSACTION_FAILED = (
        "local_transaction_failed",
        "critical",
        "Client: the code of a transaction raised an error. The broker will ask how it ends.",
    )
