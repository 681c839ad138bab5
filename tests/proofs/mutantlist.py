"""The bugs that ``mutants`` plants. Each text must be in its file once: ``test_mutants`` says which one to aim anew."""

from tests.proofs.mutant import Mutant

F, H, S, B = "rmqha/failover/", "rmqha/ha/", "rmqha/store/", "rmqha/broker/"
FAILOVER = ("tests/failover", "cluster")
TRUST = ("tests/failover/test_trust.py", "tests/failover/test_sim_cluster.py", "cluster")
ELIGIBLE = ("tests/failover/test_eligible.py", "cluster")
SYNCSET = ("tests/failover/test_syncset.py", "cluster")
LEADERSHIP = ("tests/ha/master/test_leadership.py", "tests/ha/master", "tests/failover", "cluster")
FOLLOWERS = ("tests/ha/master", "tests/ha/test_both_ends.py", "replication")
SLAVE = ("tests/ha/slave", "replication")
LOG = ("tests/store/log", "replication")
DERIVED = ("tests/store/derived", "replication")
PROMOTION = ("tests/store/offline", "tests/store/test_nodestate.py", "failover")
SENDS = "rmqha/wire/sends/"
PASS = ("tests/broker/requests/test_ordinarysends.py", "tests/broker/requests", "tests/acl")
WITNESS = ("tests/coordination/test_state.py", "tests/coordination")

MUTANTS = (
    # Failover
    Mutant(
        "a leader's key of any floor ends the doubt",
        F + "trust.py",
        "leader.cluster_id == cluster_id and leader.floor >= needed:",
        "leader.cluster_id == cluster_id:",
        TRUST,
    ),
    Mutant(
        "a key of an older epoch is believed",
        F + "trust.py",
        "    if view.epoch < known.epoch:\n        return False\n",
        "",
        TRUST,
    ),
    Mutant(
        "keys of another coordinator are believed",
        F + "trust.py",
        "and written_to != cluster_id:\n        return False",
        "and written_to != cluster_id:\n        return True",
        TRUST,
    ),
    Mutant(
        "a right is not ended before the coordinator is told",
        F + "step/obeying.py",
        """    end_right(work, reason)  # first: nothing is promised after the coordinator knows it
    end, stamp = work.seen.facts.end, work.knows.history.stamp
    status = Status(right.epoch, confirmed, end, is_released=True, is_full=is_full, stamp=stamp)
    released: list[Put | Delete] = [Delete(work.key(LEADER)), Put(work.key(STATUS), encode(status)), *writes]
    yield from transact("give up the lead", [work.still_ours()], released)
""",
        """    end, stamp = work.seen.facts.end, work.knows.history.stamp
    status = Status(right.epoch, confirmed, end, is_released=True, is_full=is_full, stamp=stamp)
    released: list[Put | Delete] = [Delete(work.key(LEADER)), Put(work.key(STATUS), encode(status)), *writes]
    yield from transact("give up the lead", [work.still_ours()], released)
    end_right(work, reason)
""",
        ("tests/failover/test_sim_cluster.py", *FAILOVER),
    ),
    Mutant(
        "a paused cluster fails over",
        F + "eligible.py",
        "    if view.config.paused:\n"
        '        return Eligibility(None, "automatic failover is paused: rmqha cluster resume")\n'
        "    if view.status is not None",
        "    if view.status is not None",
        ELIGIBLE,
    ),
    Mutant(
        "no pause between two automatic failovers",
        F + "eligible.py",
        "return max(0.0, view.config.failover_pause - passed) if passed >= 0 else 0.0",
        "return 0.0",
        ELIGIBLE,
    ),
    Mutant(
        "a node with the tag nofailover leads",
        F + "eligible.py",
        '    if me.no_failover:\n        return Eligibility(None, "it has the tag nofailover")\n    why',
        "    why",
        ELIGIBLE,
    ),
    Mutant(
        "of two nodes that begin together the shorter one leads",
        F + "eligible.py",
        "        if other.end > me.end:",
        "        if other.end < me.end:",
        ELIGIBLE,
    ),
    Mutant(
        "a node that is away is not waited for",
        F + "eligible.py",
        "    return sorted(names - view.forgotten - set(view.members))",
        "    return []",
        ELIGIBLE,
    ),
    Mutant(
        "a member joins the sync set far behind",
        F + "step/syncset.py",
        "or look.end - held > look.config.maximum_lag:",
        "or False:",
        SYNCSET,
    ),
    Mutant(
        "a member's earlier process counts",
        F + "step/syncset.py",
        "        if members.session(name) != member.session:",
        "        if False:",
        SYNCSET,
    ),
    Mutant(
        "a member that is growing is waited for without end",
        F + "step/syncset.py",
        "is_same and is_there and look.now - growth.begun < look.config.member_timeout",
        "is_same and is_there",
        SYNCSET,
    ),
    Mutant(
        "a member that hangs is waited for again and again",
        F + "step/syncset.py",
        "        if look.now - keeper.well_at.get(name, look.now) >= look.config.member_timeout:",
        "        if False:",
        SYNCSET,
    ),
    Mutant(
        "a log that lost power counts as whole",
        F + "member.py",
        "is_whole = bool(self.whole_since) and (self.is_flushed or self.boot == boot)",
        "is_whole = bool(self.whole_since)",
        FAILOVER,
    ),
    Mutant(
        "a right can be cut short by a late answer",
        H + "master/leadership.py",
        "self._until = max(self._until, until)",
        "self._until = until",
        LEADERSHIP,
    ),
    Mutant(
        "a right lasts for ever",
        H + "master/leadership.py",
        "return not self._is_ended and self._now() < self._until",
        "return not self._is_ended",
        LEADERSHIP,
    ),
    Mutant(
        "puts are taken while a successor catches up",
        H + "master/leadership.py",
        "return self._takes_puts and self.is_held()",
        "return self.is_held()",
        LEADERSHIP,
    ),
    # Replication
    Mutant(
        "a member that is not there is not waited for",
        H + "master/syncmembers.py",
        "return found if len(found) == len(required) else None",
        "return found",
        (*FOLLOWERS, "cluster"),
    ),
    Mutant(
        "puts are answered after the right has ended",
        H + "master/syncmembers.py",
        "        if self.leadership.is_ended:\n            return None\n        held = self.copies.held",
        "        held = self.copies.held",
        ("tests/failover/test_syncset.py", *FOLLOWERS, "tests/failover", "cluster"),
    ),
    Mutant(
        "an old leader is kept among the holders of a put",
        F + "step/trying.py",
        "        if name != view.sync.leader\n        and name in view.members\n",
        "        if name in view.members\n",
        ("tests/failover/test_sim_cluster.py", *FAILOVER),
    ),
    Mutant(
        "one slave with two connections counts twice",
        H + "master/enoughslaves.py",
        "                    other.doubt()",
        "                    pass",
        FOLLOWERS,
    ),
    Mutant(
        "one slave fewer is waited for",
        H + "master/enoughslaves.py",
        "return sorted(sure, key=ACKNOWLEDGED, reverse=True)[:needed]",
        "return sorted(sure, key=ACKNOWLEDGED, reverse=True)[:1]",
        FOLLOWERS,
    ),
    Mutant(
        "a slave far behind is waited for",
        H + "master/enoughslaves.py",
        "near = [slave for slave in self.copies.slaves if next_offset - slave.reported < self._near_bytes]",
        "near = list(self.copies.slaves)",
        FOLLOWERS,
    ),
    Mutant(
        "minInSyncReplicas is not looked at",
        H + "master/enoughslaves.py",
        "for slave in self.copies.slaves) >= self._slaves_for_puts",
        "for slave in self.copies.slaves) >= 0",
        FOLLOWERS,
    ),
    Mutant(
        "consumers read what one slave in sync does not hold",
        H + "master/insyncslaves.py",
        "return self.in_sync if len(self._in_sync) >= self._needed else None",
        "return [max(self._in_sync, key=held)] if len(self._in_sync) >= self._needed else None",
        (*FOLLOWERS, "tests/testing/test_sim_found.py"),
    ),
    Mutant(
        "consumers read with too few slaves in sync",
        H + "master/insyncslaves.py",
        "return self.in_sync if len(self._in_sync) >= self._needed else None",
        "return self.in_sync or None",
        (*FOLLOWERS, "failover"),
    ),
    Mutant(
        "other sizes of segments are not noticed",
        H + "slave/replica.py",
        "if master.segment_size is not None and master.segment_size != ours:",
        "if False:",
        SLAVE,
    ),
    Mutant(
        "repair takes bytes of another place",
        H + "slave/selfrepair.py",
        "if transfer.physic_offset != self._next:",
        "if False:",
        SLAVE,
    ),
    Mutant(
        "a frame's size is not checked",
        "rmqha/wire/transfer.py",
        "if not 0 <= body_size <= self._max_body_bytes:",
        "if body_size < 0:",
        ("tests/wire/test_transfer.py", *SLAVE),
    ),
    # The put path and the log
    Mutant(
        "a wait ends one byte early",
        S + "log/groupcommit.py",
        "while self._requests and self._requests[0].next_offset <= offset:",
        "while self._requests and self._requests[0].next_offset <= offset + 1:",
        ("tests/store/log/test_groupcommit.py", *LOG),
    ),
    Mutant(
        "waits that are given up were kept",
        S + "log/groupcommit.py",
        "            request.done.callback(False)",
        "            request.done.callback(True)",
        ("tests/store/log/test_groupcommit.py", *LOG),
    ),
    Mutant(
        "a store that ends answers no put that waits",
        S + "storeputs.py",
        "            self.waits.give_up_replicas()\n",
        "            pass\n",
        ("tests/store/test_put.py", "cluster"),
    ),
    Mutant(
        "a store that ends takes puts",
        S + "storeputs.py",
        "            self.phase = PutPhase.NONE\n        if self.waits",
        "            self.phase = PutPhase.TAKEN\n        if self.waits",
        ("tests/store/test_put.py", "cluster"),
    ),
    Mutant(
        "a segment has no room for its blank",
        S + "log/commitlog.py",
        "        if record.total_size + END_FILE_MIN_BLANK_LENGTH > room:",
        "        if record.total_size > room:",
        LOG,
    ),
    Mutant(
        "a torn end passes for a sound one",
        S + "log/recovery.py",
        "    if not clean_stop and _may_be_torn(found.end, vouched):",
        "    if False:",
        ("tests/store/log/test_stretches.py", *LOG, "tests/store"),
    ),
    # Retention, reads, derived files
    Mutant(
        "the log is deleted although somebody holds it",
        S + "retention.py",
        "if held_from is not None and end > held_from:",
        "if False:",
        ("tests/store/test_retention.py",),
    ),
    Mutant(
        "the log is deleted before the queues made of it are on the disk",
        S + "retention.py",
        "if log.needs_first_segment and not forced:",
        "if False:",
        ("tests/store/test_retention.py",),
    ),
    Mutant(
        "the log is kept an hour too short",
        S + "retention.py",
        "self._settings.file_reserved_time_hours * 3600",
        "(self._settings.file_reserved_time_hours - 1) * 3600",
        ("tests/store/test_retention.py",),
    ),
    Mutant(
        "a full disk deletes what is not to be deleted",
        S + "retention.py",
        "forced = must_go and self._settings.clean_file_forcibly_enable",
        "forced = must_go",
        ("tests/store/test_retention.py",),
    ),
    Mutant(
        "a read that waits is woken one message late",
        S + "readlimit.py",
        """        while self._waits and self._waits[0].offset <= self.offset:
            wait = heappop(self._waits)
            call, wait.call = wait.call, None
            if call is None:
                self._dead -= 1
                continue
            call()
            if perf_counter() > end:
                break
        if self._waking is None and self._waits and self._waits[0].offset <= self.offset:
""",
        """        while self._waits and self._waits[0].offset < self.offset:
            wait = heappop(self._waits)
            call, wait.call = wait.call, None
            if call is None:
                self._dead -= 1
                continue
            call()
            if perf_counter() > end:
                break
        if self._waking is None and self._waits and self._waits[0].offset < self.offset:
""",
        ("tests/store/test_readlimit.py", "tests/broker/requests/test_confirmed.py"),
    ),
    Mutant(
        "consumers read past the confirmed end",
        S + "reading.py",
        "return self.limit is None or record.physical_offset + record.total_size <= self.limit.offset",
        "return True",
        ("tests/store/test_reading.py", "tests/broker/requests"),
    ),
    Mutant(
        "a pull one past the end is an error",
        S + "reading.py",
        "        if offset == high:\n            return self._nothing(GetMessageStatus.OFFSET_OVERFLOW_ONE",
        "        if offset < 0:\n            return self._nothing(GetMessageStatus.OFFSET_OVERFLOW_ONE",
        ("tests/store/test_reading.py", "tests/broker/requests"),
    ),
    Mutant(
        "a deleted topic's messages are shown",
        S + "deletions.py",
        "return physical_offset < self.end and physical_offset < self.marks.get(topic, 0)",
        "return False",
        ("tests/store/test_deletions.py", "tests/broker/tables/test_deletedtopics.py"),
    ),
    Mutant(
        "deletions that a rewind takes back stay",
        S + "deletions.py",
        "return self.of(deletion for deletion in self.deletions if deletion.offset <= end)",
        "return self",
        ("tests/store/test_deletions.py", "tests/store/test_setback.py"),
    ),
    Mutant(
        "index entries are not found in the second in which they were stored",
        S + "derived/index.py",
        "if seconds < 0 or stored + 999 < begin:",
        "if seconds < 0 or stored < begin:",
        DERIVED,
    ),
    # Promotion and rewind
    Mutant(
        "offsets past the end are left after a promotion",
        S + "clamping.py",
        "            if offset > end:",
        "            if False:",
        PROMOTION,
    ),
    Mutant(
        "delay levels go on past their queues",
        S + "clamping.py",
        "    if late:\n",
        "    if False:\n",
        PROMOTION,
    ),
    Mutant(
        "an epoch is given twice",
        S + "epochs.py",
        "read_epochs(store, disk))]) + 1",
        "read_epochs(store, disk))])",
        PROMOTION,
    ),
    Mutant(
        "confirmed bytes are lost without a new epoch",
        S + "nodestate.py",
        "return replace(self, epoch=self.epoch + 1, epoch_start=offset)",
        "return self",
        ("tests/store/test_nodestate.py", *PROMOTION),
    ),
    Mutant(
        "a rewind proves less than it must",
        S + "offline/fork.py",
        "fork.offset - PROOF_BYTES if doubted_from is None else min(doubted_from, fork.offset - PROOF_BYTES)",
        "fork.offset",
        PROMOTION,
    ),
    # The witness
    Mutant(
        "a comparison of a revision is always true",
        "rmqha/coordination/state.py",
        "return compare.value == (0 if found is None else found.mod_revision)",
        "return True",
        WITNESS,
    ),
    Mutant(
        "a write with a lease that has ended is done",
        "rmqha/coordination/state.py",
        "            if isinstance(each, Put) and each.lease:\n                self.check_lease(each.lease)\n",
        "            pass\n",
        WITNESS,
    ),
    Mutant(
        "a lease ends and its keys stay",
        "rmqha/coordination/state.py",
        "return self._write([Delete(key) for key in sorted(self._keys_of.get(lease, ()))])",
        "return ()",
        WITNESS,
    ),
    Mutant(
        "a lease that is kept alive ends early",
        "rmqha/coordination/state.py",
        "self._ends[lease] = max(now + ttl, self._ends[lease])",
        "pass",
        (*WITNESS, "cluster"),
    ),
    Mutant(
        "a journal's entry is believed whatever its CRC",
        "rmqha/coordination/witness/journal.py",
        "return (number, content) if crc32(content, crc32(HEAD.pack(magic, length, number, 0))) == crc else None",
        "return number, content",
        ("tests/coordination/test_journal.py", *WITNESS),
    ),
    # Access control
    Mutant(
        "an administrator with a list may do all",
        "rmqha/acl/rules.py",
        "return self.admin and self.permissions is None",
        "return self.admin",
        ("tests/acl",),
    ),
    Mutant(
        "the default gives topics with messages of others",
        "rmqha/acl/rules.py",
        "        if is_mixed(resource):\n            return DENY\n",
        "",
        ("tests/acl",),
    ),
    Mutant(
        "anybody may read the whole broker",
        "rmqha/acl/rules.py",
        "return PUB | SUB if self.admin else DENY",
        "return PUB | SUB",
        ("tests/acl",),
    ),
    Mutant(
        "a stranger is answered at once however often",
        "rmqha/acl/patience.py",
        "return 0.0 if wait < MIN_WAIT_SECONDS else wait",
        "return 0.0",
        ("tests/acl",),
    ),
    # Transactions, timers, delays
    Mutant(
        "a transaction is asked after for ever",
        B + "requests/transaction.py",
        "if self.check_times >= settings.transaction_check_max or age_ms",
        "if age_ms",
        ("tests/broker/requests/test_transaction.py",),
    ),
    Mutant(
        "a transaction is asked after at once",
        B + "requests/transaction.py",
        "return CheckAction.WAIT if 0 <= age_ms < settings.transaction_time_out_ms else CheckAction.CHECK",
        "return CheckAction.CHECK",
        ("tests/broker/requests/test_transaction.py",),
    ),
    Mutant(
        "two transactions with other bodies are one",
        B + "requests/transaction.py",
        "return mine == theirs and born and own.body == its.body",
        "return mine == theirs and born",
        ("tests/broker/requests/test_transaction.py",),
    ),
    Mutant(
        "a timer message is not put again before retention",
        B + "background/timermessages.py",
        "if due - stored_ms > roll_ms + roll_ms // 2:",
        "if False:",
        ("tests/broker/background/test_timermessages.py",),
    ),
    Mutant(
        "a delay level above the last is no level",
        "rmqha/wire/delay.py",
        "level = min(int(delay), self.max_level)",
        "level = int(delay)",
        ("tests/wire/test_delay.py", "tests/broker/background/test_schedule.py"),
    ),
    # Pulls and tables
    Mutant(
        "a held pull is not woken by the message that it waits for",
        B + "requests/pull.py",
        "if pull.queue_offset <= message.queue_offset and (",
        "if pull.queue_offset < message.queue_offset and (",
        ("tests/broker/requests/test_pull.py",),
    ),
    Mutant(
        "a held pull shows what is not confirmed",
        B + "requests/pull.py",
        "        if end <= limit.offset:\n            return False\n",
        "        if True:\n            return False\n",
        ("tests/broker/requests/test_confirmed.py", "tests/broker/requests/test_pull.py"),
    ),
    Mutant(
        "two members lock one queue",
        B + "tables/locks.py",
        "        if held is not None and held.client_id != client_id:\n            return False\n",
        "",
        ("tests/broker/tables/test_locks.py",),
    ),
    Mutant(
        "a member unlocks the queue of another",
        B + "tables/locks.py",
        "if held is not None and held.client_id == client_id:\n                self._forget(group, queue)\n",
        "if held is not None:\n                self._forget(group, queue)\n",
        ("tests/broker/tables/test_locks.py",),
    ),
    Mutant(
        "a reset of offsets is never over",
        B + "tables/offsets.py",
        "if offset == NO_OFFSET or until <= self._time.seconds():",
        "if offset == NO_OFFSET:",
        ("tests/broker/tables/test_offsets.py", "tests/broker/requests"),
    ),
    Mutant(
        "one client takes all places",
        B + "tables/shares.py",
        "(is_half_full and self._of.get(holder, 0) >= self.most // PARTS)",
        "False",
        ("tests/broker/tables/test_shares.py", "tests/broker/requests"),
    ),
    # Name server, status, filters
    Mutant(
        "a leader of an earlier epoch takes the place of a later one",
        "rmqha/namesrv/routeinfo.py",
        "new.broker_id == MASTER_ID and 0 < epoch < new.data_version.state_version",
        "new.broker_id == MASTER_ID and 0 < epoch",
        ("tests/namesrv/test_peers.py", "tests/namesrv"),
    ),
    Mutant(
        "a stranger takes the place of a leader",
        "rmqha/namesrv/routeinfo.py",
        "return is_later and any(self._is_of(address, peer) for address in broker.addresses.values())",
        "return is_later",
        ("tests/namesrv/test_peers.py", "tests/namesrv"),
    ),
    Mutant(
        "a name server keeps texts without end",
        "rmqha/namesrv/kvconfig.py",
        "if size > 0 and self._bytes + size > MAX_CHARACTERS:",
        "if False:",
        ("tests/namesrv",),
    ),
    Mutant(
        "a slave that hangs is fine",
        "rmqha/ops/status.py",
        "if node.state in COPYING_NAMES and _is_old(node, now):",
        "if False:",
        ("tests/ops/test_status.py",),
    ),
    Mutant(
        "a slave with other tables is fine",
        "rmqha/ops/status.py",
        'if node.tables is not None and not node.tables.get("inSync"):',
        "if False:",
        ("tests/ops/test_status.py",),
    ),
    Mutant(
        "members of a group share queues unevenly",
        "rmqha/client/allocation.py",
        "    start = index * share + min(index, rest)",
        "    start = index * share",
        ("tests/client/test_allocation.py",),
    ),
    Mutant(
        "a batch's entry may reach past its end",
        "rmqha/wire/batch.py",
        "or next_at > end or size != next_at - at:",
        "or size != next_at - at:",
        ("tests/wire/test_batch.py",),
    ),
    # The pass over ordinary sends
    Mutant(
        "a pass stores WAIT",
        SENDS + "plain.py",
        '            padded = padded.replace(WAIT_TRUE, "\\2")\n',
        "            pass\n",
        PASS,
    ),
    Mutant(
        "a pass takes a property that asks for a delay",
        SENDS + "plain.py",
        r'"\2WAIT\1" in padded or "\2DELAY\1" in padded or',
        r'"\2WAIT\1" in padded or',
        PASS,
    ),
    Mutant(
        "units of a pass have size and offset in the wrong order",
        SENDS + "plain.py",
        "UNIT.pack(position, size, tags_hash(tags) if tags else 0)",
        "UNIT.pack(size, position, tags_hash(tags) if tags else 0)",
        PASS,
    ),
    Mutant(
        "a pass believes the name of an account",
        SENDS + "plain.py",
        "not place.access.may_send(code, fields, body):",
        '"AccessKey" not in fields:',
        PASS,
    ),
    Mutant(
        "a pass leaves a byte too little for the blank of a segment",
        SENDS + "plain.py",
        "if position + size > place.limit:",
        "if position + size > place.limit + 1:",
        PASS,
    ),
    Mutant(
        "a pass takes a queue that is one too high",
        SENDS + "plain.py",
        "if not 0 <= queue_id < found.write_queues:",
        "if not 0 <= queue_id <= found.write_queues:",
        PASS,
    ),
    Mutant(
        "a pass answers sends that want none",
        SENDS + "plain.py",
        "        if not flag & ONEWAY_FLAG:\n",
        "        if not flag & RESPONSE_FLAG:\n",
        PASS,
    ),
    Mutant(
        "a pass takes false for an empty text",
        SENDS + "plain.py",
        'required, properties = names.required(fields), fields.get(names.properties, "")\n            retries',
        'required, properties = names.required(fields), fields.get(names.properties) or ""\n            retries',
        PASS,
    ),
    Mutant(
        "a pass counts a read as one message",
        B + "requests/ordinarysends.py",
        "self._stats.messages_put(topic, units.count, units.record_bytes, units.count)",
        "self._stats.messages_put(topic, 1, units.record_bytes, 1)",
        PASS,
    ),
    Mutant(
        "the answers of a pass do not ask for the lease",
        S + "putwaits.py",
        "            status = self._if_leading(status)\n",
        "",
        PASS,
    ),
    Mutant(
        "a pass goes on in a topic that is being deleted",
        B + "requests/ordinarysends.py",
        "        if topic in self._puts.appender.closed_topics:\n            return None\n",
        "",
        PASS,
    ),
    # The log as data
    Mutant(
        "messages on a boundary are read twice",
        S + "log/records.py",
        "size = min(size, self._split.end - self.at)",
        "size = min(size, self._split.segment_end - self.at)",
        ("tests/pipeline/test_boundaries.py", "tests/pipeline/test_segments.py"),
    ),
    Mutant(
        "a part begins inside a body",
        "rmqha/pipeline/boundaries.py",
        "        if at >= target and not leading:",
        "        if at >= target:",
        ("tests/pipeline/test_boundaries.py",),
    ),
    Mutant(
        "a record near the end of a file is looked for from its beginning",
        "rmqha/pipeline/boundaries.py",
        "    if target <= piece.start:\n        return piece.start\n",
        "    if target >= piece.start:\n        return piece.start\n",
        ("tests/pipeline/test_boundaries.py",),
    ),
)
"""All of them, by the rooms in which they are planted."""
