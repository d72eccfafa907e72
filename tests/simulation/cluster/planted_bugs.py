"""Bugs of a cluster that the simulation has to find, each planted by itself in a copy.

HBase itself is not simulated: where its journal refuses a commit, the bug is planted in the model.
"""

from tests.simulation.planted_bugs import Change, PlantedBug, planted

BUGS = (
    planted(
        "claim-without-a-fence",
        "cluster/topic_claims.py",
        "                floor = floor.raised_to("
        "await self._fenced(before, found.value.incarnation))\n",
        "                pass\n",
    ),
    planted(
        "fenced-journal-takes-commits",
        "tests/cluster/shared_store.py",
        "        if len(self._commits) != self._number:\n            raise _taken_over()\n",
        "",
    ),
    planted(
        "leadership-not-required-after-a-sync",
        "tx/leadership.py",
        "        if sync:\n            self._tenure.require()\n",
        "",
    ),
    PlantedBug(
        "server-lives-on-after-its-session",
        (
            Change(
                "process/cluster_member.py",
                "        if not self._is_closed:\n            self._die(\n",
                "        if self._is_closed:\n            self._die(\n",
            ),
            Change("process/cluster_member.py", "if self._tables.was_replaced:", "if False:"),
            Change(
                "process/cluster_member.py",
                "if (reason := self._lost_leadership()) is not None:",
                "if (reason := None) is not None:",
            ),
            Change(
                "process/cluster_member.py",
                "if epoch is not None and election.my_epoch != epoch:",
                "if False:",
            ),
        ),
    ),
    planted(
        "acknowledges-without-proof-of-its-session",
        "cluster/forwarding.py",
        "        if not is_proven():\n            if not operation.leaves_doubt:\n",
        "        if False:\n            if not operation.leaves_doubt:\n",
    ),
    planted(
        "former-leader-does-not-know-a-transaction",
        "cluster/forwarding.py",
        "            await require_leading()\n",
        "            pass\n",
    ),
    planted(
        "resumes-without-proof-of-its-session",
        "process/cluster_member.py",
        "lambda: not self.is_suspended,",
        "lambda: not self.is_suspended or bool(self.ownership.members),",
    ),
    PlantedBug(
        "former-owner-serves-forwarded-requests",
        (
            Change(
                "cluster/topic_claims.py",
                "        if topic in self._owned and topic not in self._changing:\n"
                "            return None\n        if (cached",
                "        if topic in self._owned and topic not in self._changing:\n"
                "            return None\n"
                "        if is_forwarded and topic in self._handover.topics():\n"
                "            return None\n        if (cached",
            ),
            Change(
                "messaging/topic_handover.py",
                "        for each in self._state.topics.unit(topic):\n"
                "            self._state.remove_topic(each)\n",
                "        _set_released(parts, is_released=False)\n",
            ),
        ),
    ),
    planted(
        "owner-that-refused-is-remembered",
        "cluster/topic_claims.py",
        "        self._cached.pop(topic, None)\n        self._are_members_old",
        "        self._are_members_old",
    ),
    planted(
        "partitions-left-behind-by-a-move",
        "messaging/log/loading.py",
        "for topic, record in of_name if topic.unit == unit}\n",
        "for topic, record in of_name if topic == unit}\n",
    ),
    planted(
        "end-reported-while-a-partition-has-rows",
        "messaging/write/transaction_rows.py",
        "        return topic not in _units(self._state.index.topics([pointer]))\n",
        "        return topic not in {each.home for each in self._state.index.topics([pointer])}\n",
    ),
    planted(
        "offsets-below-the-floor",
        "messaging/topic_handover.py",
        "        sequencer.raise_above(floor.offset)\n",
        "",
    ),
    planted(
        "cells-below-the-floor",
        "messaging/topic_handover.py",
        "        _shared(self._store.require_up()).raise_time(floor.cell_ms)\n        sequencer",
        "        sequencer",
    ),
    planted(
        "tail-cache-kept-when-a-topic-comes-back",
        "messaging/log/state_in_memory.py",
        "        self.tail_cache.skip_to(last)\n        self.idle",
        "        self.idle",
    ),
    planted(
        "topic-released-before-its-rows-are-shared",
        "messaging/topic_handover.py",
        "await self._store.read(lambda store: _shared(store).wait_until_shared())",
        "pass",
    ),
    PlantedBug(
        "topic-loaded-before-it-is-claimed",
        (
            Change(
                "cluster/topic_claims.py",
                "        floor = NO_FLOOR\n        if found is not None:\n            floor = "
                "found.value.floor\n            before",
                "        floor = NO_FLOOR\n        await self._handover.take([topic], floor)\n"
                "        if found is not None:\n            floor = found.value.floor\n"
                "            before",
            ),
        ),
    ),
    planted(
        "high-water-mark-raised-outside-of-a-batch",
        "messaging/topic_handover.py",
        "        await self._committer.submit(Write(partial(self._add, loaded, floor), "
        "internal=True))\n",
        "        self._state.sequencer.raise_above(floor.offset)\n"
        "        self._state.high_water_mark = self._state.sequencer.last\n"
        "        await self._committer.submit(Write(partial(self._add, loaded, floor), "
        "internal=True))\n",
    ),
    planted(
        "release-without-a-floor",
        "cluster/topic_claims.py",
        "floor=owned.value.floor.raised_to(floor),",
        "floor=owned.value.floor,",
    ),
    planted(
        "server-is-not-told-of-a-topic-that-was-given-to-it",
        "cluster/topic_claims.py",
        "        await self._tell_released()\n        released",
        "        released",
    ),
    planted(
        "reads-without-a-lease",
        "messaging/log/read_lease.py",
        "        if not leaves_doubt:\n            await holder_check.require()\n",
        "",
    ),
    planted(
        "deleted-topic-can-not-be-loaded",
        "messaging/log/loading.py",
        "        if isinstance(record, TopicRecord) and record.generation > 0:\n            prefix",
        "        if isinstance(record, TopicRecord):\n            prefix",
    ),
    # Transactions over topics of several owners
    planted(
        "join-left-open-at-the-end-of-its-transaction",
        "cluster/transactions_client.py",
        "        for join in joins:\n            self._close(join)\n        await self._emptied",
        "        assert joins is not None, self._emptied",
    ),
    planted(
        "topic-forgotten-before-its-owner-marked",
        "cluster/transaction_rows_client.py",
        "                done = []\n",
        "                done = list(asked)\n",
    ),
    planted(
        "new-leader-opens-before-all-servers-acknowledged-it",
        "cluster/transaction_rows_client.py",
        "        await _all(map(self._acknowledge, missing))",
        "        await asyncio.gather(*map(self._acknowledge, missing), return_exceptions=True)",
    ),
    planted(
        "owner-obeys-former-leaders",
        "cluster/transactions_client.py",
        "        if epoch != self.epoch:\n            raise TransactionsUnavailableError(\n"
        '                f"this server obeys',
        "        if epoch > self.epoch:\n            raise TransactionsUnavailableError(\n"
        '                f"this server obeys',
    ),
    planted(
        "final-write-after-the-leader-gave-it-up",
        "cluster/transaction_rows_service.py",
        "        self._refused.update(writes)\n",
        "",
    ),
    planted(
        "rows-in-the-shared-tables-not-found-by-a-new-leader",
        "cluster/transaction_rows_client.py",
        "        await self._repeat(self._read_shared_index)\n",
        "",
    ),
    planted(
        "former-owner-of-a-topic-remembered-by-the-leader",
        "cluster/transaction_rows_client.py",
        "any more.\n                    self._joined().ownership.forget(topic)\n",
        "any more.\n",
    ),
    planted(
        "set-aside-after-the-transaction-committed",
        "cluster/transaction_rows_client.py",
        "                await self.close(server, writes=[number])\n"
        "            raise StorageOutcomeUnknownError(str(error)) from None\n",
        "                pass\n"
        "            raise StorageOutcomeUnknownError(str(error)) from None\n",
    ),
    planted(
        "set-aside-at-the-leader-only",
        "cluster/transaction_rows_client.py",
        "            self._set_aside_at(server, pointers, topics) "
        "for server, topics in by_server.items()\n",
        "            self._set_aside_at(server, pointers, topics)\n"
        "            for server, topics in by_server.items()\n"
        "            if server.owner is None\n",
    ),
    planted(
        "prepared-transaction-invalidated-by-a-new-leader",
        "tx/state_machine.py",
        "            if opened.prepared is not None:\n                continue\n            has",
        "            has",
    ),
    planted(
        "owner-of-a-partition-not-found-by-a-commit",
        "cluster/transaction_rows_service.py",
        "sorted({entry.topic.unit for entry in entries})",
        "sorted({entry.topic for entry in entries})",
    ),
)
