"""Transactions over topics of several servers: atomic for every reader, whatever is lost, and
whichever server ends (decision 0042, Transactions across owners)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.peers import Owner
from cluster.transaction_rows_client import CLOSE_S_MAX
from kernel.owner_floor import NO_FLOOR
from kernel.requests_and_replies import Caller
from messaging.read.poll import Poll
from tests.cluster.transaction_servers import NOON_MS, WITHIN_S, Cluster, Sent, turns
from tuff.protocol.errors import (
    ForbiddenError,
    TransactionCommittedError,
    TransactionNotInProgressError,
    TransactionPreparedError,
    TransactionsUnavailableError,
    TransactionUnknownError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import Delay, Isolation, PublishEntry, RollbackDetail
from tx.log_records import InvalidReason
from tx.outcomes import EndedState, Outcome

A, B, C = (TopicId("ns", name) for name in "abc")
LATE = ("s2", "report")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three servers, each with a topic; s1 leads."""
    made = Cluster(tmp_path)
    await made.start("s1", "s2", "s3", topics={A: "s1", B: "s2", C: "s3"})
    yield made
    await made.close()


def entries(*topics: TopicId) -> list[PublishEntry]:
    return [PublishEntry(topic=topic, payloads=[b"final"]) for topic in topics]


async def all_committed(cluster: Cluster) -> list[list[bytes]]:
    """What readers get of each topic, at its owner."""
    return [await (await cluster.owner(topic)).committed(topic) for topic in (A, B, C)]


async def test_a_transaction_over_two_owners_becomes_visible_with_its_commit(
    cluster: Cluster,
) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()

    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await s3.publish(C, b"c", pointer=tx.transaction_id)
    before = await all_committed(cluster)
    outcome = await s1.manager.runner.commit(tx.transaction_id, changes=[])

    assert before == [[], [], []]
    assert await all_committed(cluster) == [[], [b"b"], [b"c"]]
    assert outcome.topics == ("ns:b", "ns:c")


async def test_delayed_messages_of_other_owners_enter_if_their_transaction_commits(
    cluster: Cluster,
) -> None:
    s1, s2, s3 = cluster.servers.values()
    kept, gone = await s1.begin(), await s1.begin()
    await s2.publish_later(B, b"b", delay_ms=100, pointer=kept.transaction_id)
    await s3.publish_later(C, b"never", delay_ms=100, pointer=gone.transaction_id)
    delays = [Delay(100, is_time=False)]
    final = PublishEntry(topic=A, payloads=[b"final"], delays=delays)

    outcome = await s1.manager.runner.commit(kept.transaction_id, changes=[], publish=[final])
    await s1.manager.runner.abort(gone.transaction_id)
    await cluster.tick()
    await turns()

    assert outcome.topics == ("ns:a", "ns:b")
    assert await all_committed(cluster) == [[b"final"], [b"b"], []]
    assert not any(each.messaging.state.index.pointers() for each in (s1, s2, s3))


async def test_delayed_messages_of_an_open_transaction_move_with_their_topic(
    cluster: Cluster,
) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish_later(B, b"b", delay_ms=100, pointer=tx.transaction_id)
    await cluster.move(B, "s3")

    await s1.manager.runner.commit(tx.transaction_id, changes=[])
    await cluster.tick()
    await turns()

    assert await s3.committed(B) == [b"b"]
    assert list(s3.messaging.state.index.pointers()) == []


async def test_an_abort_marks_the_rows_at_all_owners_before_it_returns(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s1.publish(A, b"a", pointer=tx.transaction_id)
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await s3.publish(C, b"c", pointer=tx.transaction_id)

    outcome = await s1.manager.runner.abort(tx.transaction_id)

    assert outcome.state is EndedState.ABORTED
    assert not any(each.messaging.state.index.pointers() for each in (s1, s2, s3))
    assert await all_committed(cluster) == [[], [], []]


async def test_an_end_finds_the_new_owner_of_a_topic_that_the_leader_remembers_elsewhere(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    aborted, committed = await s1.begin(), await s1.begin()
    await s2.publish(B, b"b", pointer=aborted.transaction_id)
    await s1.view.owner_of(B, is_forwarded=False, creates=False)
    await cluster.move(B, "s3")

    abort = s1.manager.runner.abort(aborted.transaction_id)
    await asyncio.wait_for(abort, WITHIN_S)
    await s1.view.owner_of(B, is_forwarded=False, creates=False)
    await cluster.move(B, "s2")
    await s1.manager.runner.commit(committed.transaction_id, changes=[], publish=entries(B))

    assert await all_committed(cluster) == [[], [b"final"], []]


async def test_a_commit_publishes_at_three_owners(cluster: Cluster) -> None:
    s1 = cluster.servers["s1"]
    tx = await s1.begin()

    outcome = await s1.manager.runner.commit(
        tx.transaction_id, changes=[], publish=entries(C, A, B, A)
    )

    assert [each.pointer for each in outcome.published] == [tx.transaction_id] * 4
    assert await all_committed(cluster) == [[b"final", b"final"], [b"final"], [b"final"]]
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))
    assert not any(each.messaging.state.index.ending for each in cluster.servers.values())


async def test_a_commit_publishes_to_one_partition_of_another_owner(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    topic = TopicId("ns", "d")
    cluster.owners[topic] = "s2"
    await s2.handover.take([topic], NO_FLOOR)
    await s2.messaging.topics.create(topic, {}, partition_count=2)
    tx = await s1.begin()

    await s1.manager.runner.commit(
        tx.transaction_id, changes=[], publish=entries(topic.partition(1))
    )

    assert await s2.committed(topic.partition(1)) == [b"final"]


async def test_the_leader_refuses_joins_with_its_own_errors(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    committed = await s1.begin()
    await s1.manager.runner.commit(committed.transaction_id, changes=[])

    with pytest.raises(TransactionCommittedError):
        await s2.publish(B, b"x", pointer=committed.transaction_id)
    with pytest.raises(TransactionUnknownError):
        await s2.publish(B, b"x", pointer=17)


async def test_another_owner_lets_only_the_principal_of_a_transaction_write(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    pointer = (await s1.begin(Caller("alice"))).transaction_id
    for enter in (s2.transactions.enter, s2.transactions.enter_rollback):
        for _ in range(2):  # with the first, the server joins
            with pytest.raises(ForbiddenError, match="does not belong to principal bob"):
                await enter(pointer, B, Caller("bob"))

        for caller in (Caller("alice"), Caller("admin", may_administer=True), None):
            permit = await enter(pointer, B, caller)
            assert permit is not None
            permit.leave()


async def test_another_owner_tells_tenants_apart(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    alice = Caller("alice", tenant="acme")
    pointer = (await s1.begin(alice)).transaction_id

    for other in (Caller("alice"), Caller("alice", tenant="beta"), Caller("bob", tenant="acme")):
        with pytest.raises(ForbiddenError, match="does not belong to principal"):
            await s2.transactions.enter(pointer, B, other)
    permit = await s2.transactions.enter(pointer, B, alice)
    permit.leave()


async def test_a_commit_waits_for_a_write_in_flight_at_another_owner(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    s2.writes.clear()
    publishing = asyncio.ensure_future(s2.publish(B, b"b", pointer=tx.transaction_id))
    await turns()

    committing = asyncio.ensure_future(s1.manager.runner.commit(tx.transaction_id, changes=[]))
    await turns(200)
    was_done = committing.done()
    with pytest.raises(TransactionsUnavailableError):
        await s2.publish(B, b"late", pointer=tx.transaction_id)
    s2.writes.set()
    await committing

    await publishing
    assert not was_done
    assert (await all_committed(cluster))[1] == [b"b"]
    with pytest.raises(TransactionCommittedError):
        await s2.publish(B, b"late", pointer=tx.transaction_id)


async def test_a_join_whose_reply_is_late_gives_no_permit_after_the_commit(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    late = asyncio.Event()

    async def after(sent: Sent) -> None:
        if sent.name == "join":
            await late.wait()

    cluster.network.after = after
    publishing = asyncio.ensure_future(s2.publish(B, b"b", pointer=tx.transaction_id))
    await turns()
    await s1.manager.runner.commit(tx.transaction_id, changes=[])
    late.set()

    with pytest.raises(TransactionsUnavailableError):
        await publishing
    assert await s2.everything(B) == []


async def test_a_lost_close_is_repeated(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    lost: list[Sent] = []

    def loses(sent: Sent) -> bool:
        if sent.name == "close" and len(lost) < 3:
            lost.append(sent)
            return True
        return False

    cluster.network.loses_request = loses
    await s1.manager.runner.commit(tx.transaction_id, changes=[])

    assert len(lost) == 3
    assert (await all_committed(cluster))[1] == [b"b"]


async def test_lost_ends_and_lost_reports_heal(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await s3.publish(C, b"c", pointer=tx.transaction_id)
    cluster.network.loses_request = lambda sent: sent.name in {"end", "report"}

    await s1.manager.runner.commit(tx.transaction_id, changes=[])
    for _ in range(5):
        await cluster.tick()
    was_carried = s1.rows.is_carried(tx.transaction_id)
    cluster.network.loses_request = lambda _sent: False
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))

    assert was_carried
    assert list(s2.messaging.state.index.pointers()) == []
    assert list(s3.messaging.state.index.ending) == []


async def test_a_silent_server_is_not_waited_for_long_before_it_is_found_to_have_ended(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)

    await s1.manager.runner.commit(tx.transaction_id, changes=[])

    closes = [each for each in cluster.network.calls if each.name == "close"]
    assert closes
    assert all(each.within_s <= CLOSE_S_MAX for each in closes)


async def test_an_owner_that_dies_with_its_joins_holds_no_commit_up(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await cluster.kill("s2")

    await s1.manager.runner.commit(tx.transaction_id, changes=[])

    assert cluster.tables.fence_counts["s2", 1] >= 1
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))
    assert (await all_committed(cluster))[1] == [b"b"]


async def test_a_live_owner_that_is_silent_holds_a_commit_up(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    cluster.network.loses_request = lambda sent: sent.target == "s2"

    committing = asyncio.ensure_future(s1.manager.runner.commit(tx.transaction_id, changes=[]))
    await turns(2_000)

    assert not committing.done()
    assert cluster.tables.fence_counts["s2", 1] == 0
    cluster.network.loses_request = lambda _sent: False
    await committing


async def test_rows_are_marked_where_their_topic_has_moved(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await s1.publish(A, b"a", pointer=tx.transaction_id)
    await cluster.move(B, "s3")
    await cluster.move(A, "s2")
    await s3.publish(B, b"b2", pointer=tx.transaction_id)

    outcome = await s1.manager.runner.abort(tx.transaction_id)

    assert outcome.state is EndedState.ABORTED
    assert await s3.committed(B) == []
    assert await s2.committed(A) == []
    assert not any(each.messaging.state.index.pointers() for each in (s1, s2, s3))


async def test_a_topic_that_moves_before_its_owner_learns_of_the_end_is_marked_by_the_next_one(
    cluster: Cluster,
) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)

    async def before(sent: Sent) -> None:
        if sent.name == "end" and cluster.owners[B] == "s2":
            await cluster.move(B, "s3")

    cluster.network.before = before
    outcome = await s1.manager.runner.abort(tx.transaction_id)

    assert outcome.state is EndedState.ABORTED
    assert list(s3.messaging.state.index.pointers()) == []
    assert await s3.committed(B) == []


async def test_a_topic_that_moves_before_the_final_rows_gets_them_at_its_new_owner(
    cluster: Cluster,
) -> None:
    s1 = cluster.servers["s1"]
    tx = await s1.begin()

    async def before(sent: Sent) -> None:
        if sent.name == "final" and cluster.owners[B] == "s2":
            await cluster.move(B, "s3")

    cluster.network.before = before
    await s1.manager.runner.commit(tx.transaction_id, changes=[], publish=entries(B, A))

    assert cluster.owners[B] == "s3"
    assert await all_committed(cluster) == [[b"final"], [b"final"], []]


async def test_a_lost_reply_of_final_rows_leaves_nothing_visible(cluster: Cluster) -> None:
    s1 = cluster.servers["s1"]
    tx = await s1.begin()
    cluster.network.loses_reply = lambda sent: sent.name == "final"

    with pytest.raises(UnavailableError, match="may or may not"):
        await s1.manager.runner.commit(tx.transaction_id, changes=[], publish=entries(A, B))

    assert (await s1.manager.runner.outcome(tx.transaction_id)).state is EndedState.INVALID
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))
    s1.manager.invalid_list.prune(also_lost=True)
    await turns()
    assert await all_committed(cluster) == [[], [], []]


async def test_final_rows_that_arrive_after_they_were_given_up_are_refused(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    lost: list[Sent] = []

    def loses(sent: Sent) -> bool:
        lost.extend([sent] if sent.name == "final" else [])
        return sent.name == "final"

    cluster.network.loses_request = loses
    with pytest.raises(UnavailableError):
        await s1.manager.runner.commit(tx.transaction_id, changes=[], publish=entries(B))
    cluster.network.loses_request = lambda _sent: False
    acknowledge = next(each for each in cluster.network.calls if each.name == "acknowledge")
    await cluster.network.carry(s1, acknowledge)  # it arrives twice
    with pytest.raises(TuffError, match="given up"):
        raise await cluster.network.refusal(s2, lost[0])

    assert await s2.everything(B) == []


async def test_final_rows_of_a_new_leader_are_not_taken_for_those_of_the_one_before(
    cluster: Cluster,
) -> None:
    leader = cluster.servers["s1"]
    for next_leader in ("s3", "s2"):
        tx = await leader.begin()
        await leader.manager.runner.commit(tx.transaction_id, changes=[], publish=entries(B))
        leader = await cluster.elect(next_leader)

    assert (await all_committed(cluster))[1] == [b"final", b"final"]


async def test_calls_that_are_delivered_twice_are_executed_once(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    cluster.network.doubles = lambda _sent: True
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)

    await s1.manager.runner.commit(tx.transaction_id, changes=[], publish=entries(B, C))
    await turns(300)

    assert await s2.everything(B) == [b"b", b"final"]
    assert await s3.everything(C) == [b"final"]


def hold_leader_at(cluster: Cluster, step: str) -> asyncio.Event:
    """Let the calls of s1 wait for ever at this step of a commit; the event says that they do."""
    reached = asyncio.Event()

    async def hold(is_there: bool) -> None:
        if is_there:
            reached.set()
            await asyncio.Event().wait()

    async def before(sent: Sent) -> None:
        await hold((step, sent.name) == ("end", "end"))
        await hold((step, sent.name, sent.target) == ("first final", "final", "s3"))

    async def after(sent: Sent) -> None:
        await hold((step, sent.name) == ("check", "check"))

    cluster.network.before, cluster.network.after = before, after
    if step == "all finals":
        cluster.servers["s1"].log.clear()
        reached.set()
    return reached


@pytest.mark.parametrize(
    ("step", "ending", "at_b", "at_c"),
    [
        ("check", "in_progress", [b"b"], []),
        ("first final", "invalid", [], []),
        ("all finals", "invalid", [], []),
        ("end", "committed", [b"b", b"final"], [b"final"]),
    ],
)
async def test_a_leader_that_dies_in_a_commit_leaves_all_or_nothing(
    cluster: Cluster, step: str, ending: str, at_b: list[bytes], at_c: list[bytes]
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s1.manager.take_snapshot()  # with its start
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    reached = hold_leader_at(cluster, step)
    commit = s1.manager.runner.commit(tx.transaction_id, changes=[], publish=entries(B, C))

    committing = asyncio.ensure_future(commit)
    await asyncio.wait_for(reached.wait(), WITHIN_S)
    await turns(300)
    committing.cancel()
    await cluster.kill("s1")
    cluster.network.before = cluster.network.after = _pass
    await cluster.elect("s2")

    found = await s2.manager.runner.outcome(tx.transaction_id)
    assert str(found.state.value if isinstance(found, Outcome) else found.state) == ending
    if ending == "in_progress":
        await s2.manager.runner.commit(tx.transaction_id, changes=[])
    await cluster.until(lambda: not s2.rows.is_carried(tx.transaction_id))
    assert (await all_committed(cluster))[1:] == [at_b, at_c]


async def _pass(_sent: Sent) -> None:
    return


async def test_an_open_transaction_goes_on_with_a_new_leader(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s1.manager.runner.can_commit(tx.transaction_id, [b"x"])
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await s1.publish(A, b"a", pointer=tx.transaction_id)
    await s1.manager.take_snapshot()  # with its start
    await cluster.kill("s1")
    with pytest.raises(TransactionsUnavailableError):
        await s2.committed(B)

    await cluster.elect("s2")
    await s3.publish(C, b"c", pointer=tx.transaction_id)
    outcome = await s2.manager.runner.commit(tx.transaction_id)

    assert outcome.topics == ("ns:a", "ns:b", "ns:c")
    await cluster.until(lambda: not s2.rows.is_carried(tx.transaction_id))
    assert await all_committed(cluster) == [[b"a"], [b"b"], [b"c"]]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_prepared_transaction_is_resolved_at_the_next_leader(
    cluster: Cluster, *, commits: bool
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    prepare = s1.manager.runner.prepare
    await prepare(tx.transaction_id, database="db", changes=[b"x"], publish=entries(B, C))
    with pytest.raises(TransactionPreparedError):
        await s2.publish(B, b"late", pointer=tx.transaction_id)
    await cluster.kill("s1")

    await cluster.elect("s2")
    (found,) = await s2.manager.monitoring.prepared("db")
    runner = s2.manager.runner
    resolve = runner.commit_prepared if commits else runner.abort_prepared

    assert found.transaction_id == tx.transaction_id
    assert (await all_committed(cluster))[1:] == [[], []]
    await resolve(tx.transaction_id)
    await cluster.until(lambda: not s2.rows.is_carried(tx.transaction_id))
    committed = [[b"b", b"final"], [b"final"]]
    assert (await all_committed(cluster))[1:] == (committed if commits else [[], []])


async def test_rows_of_a_lost_transaction_at_a_dead_owner_are_marked_by_the_next_leader(
    cluster: Cluster,
) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s1.manager.take_snapshot()  # with its start
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await cluster.kill("s2")
    await cluster.kill("s1")

    await cluster.elect("s3")
    assert s3.rows.topics([tx.transaction_id]) == ["ns:b"]
    outcome = await s3.manager.runner.abort(tx.transaction_id)

    assert outcome.state is EndedState.ABORTED
    assert (await all_committed(cluster))[1] == []
    assert cluster.owners[B] == "s3"


async def test_a_new_leader_waits_for_a_live_owner_and_its_writes(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    s3.writes.clear()
    publishing = asyncio.ensure_future(s3.publish(C, b"c", pointer=tx.transaction_id))
    await turns()
    await cluster.kill("s1")

    electing = asyncio.ensure_future(cluster.elect("s2"))
    await turns(2_000)
    was_elected = electing.done()
    s3.writes.set()
    await electing

    await publishing
    assert not was_elected
    assert s2.rows.is_carried(tx.transaction_id)


async def test_owners_refuse_an_earlier_leader(cluster: Cluster) -> None:
    s1, _, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s3.publish(C, b"c", pointer=tx.transaction_id)
    await cluster.elect("s2")  # and s1 has not noticed

    calls: dict[str, dict[str, object]] = {
        "close": {"joins": [1], "writes": []},
        "final": {"number": 1, "entries": []},
        "aside": {"number": 1, "pointers": [tx.transaction_id], "topics": [str(C)]},
        "end": {"committed": [tx.transaction_id], "ended": [], "topics": []},
        "acknowledge": {},
    }
    for name, body in calls.items():
        sent = Sent("s1", "s3", name, {**body, "epoch": 1, "to": 1})
        with pytest.raises(TransactionsUnavailableError, match="epoch"):
            raise await cluster.network.refusal(s3, sent)

    assert list(s3.messaging.state.index.pointers()) == [tx.transaction_id]


async def test_a_server_that_still_asks_the_earlier_leader_gets_no_permit_and_no_snapshot(
    cluster: Cluster,
) -> None:
    s1, _, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s3.publish(C, b"plain")
    await cluster.elect("s2")
    s3.view.stale_leader = Owner("s1", "http://s1")

    with pytest.raises(TransactionsUnavailableError):
        await s3.publish(C, b"c", pointer=tx.transaction_id)
    with pytest.raises(TransactionsUnavailableError):
        await s3.transactions.snapshot()
    assert await s3.committed(C) == [b"plain"]


async def test_a_server_without_a_leader_serves_what_is_decided_and_refuses_the_rest(
    cluster: Cluster,
) -> None:
    s1, _, s3 = cluster.servers.values()
    tx = await s1.begin()
    await s3.publish(C, b"plain")
    await s3.publish(C, b"undecided", pointer=tx.transaction_id)
    cluster.network.loses_request = lambda sent: sent.name == "snapshot"

    asked = len(cluster.network.calls)
    assert await s3.committed(C) == [b"plain"]
    assert cluster.network.calls[asked].name == "snapshot"
    found = await s3.messaging.polls.poll(C, Poll(isolation=Isolation.COMMITTED))
    behind = Poll(
        isolation=Isolation.COMMITTED, start=MessageId.from_bytes(found.next_id), inclusive=False
    )
    with pytest.raises(TransactionsUnavailableError, match="does not answer"):
        await s3.messaging.polls.poll(C, behind)

    await s1.manager.runner.commit(tx.transaction_id, changes=[])
    cluster.network.loses_request = lambda _sent: False
    found = await s3.messaging.polls.poll(C, behind)
    assert [each for _, each in found.items] == [b"undecided"]


async def test_a_new_member_acknowledges_the_leader_before_it_joins_a_transaction(
    cluster: Cluster,
) -> None:
    s1 = cluster.servers["s1"]
    await cluster.join("s4")
    await cluster.move(B, "s4")
    s4 = cluster.servers["s4"]
    tx = await s1.begin()

    cluster.network.loses_request = lambda sent: sent.name == "acknowledge"
    with pytest.raises(TransactionsUnavailableError):
        await s4.publish(B, b"b", pointer=tx.transaction_id)
    cluster.network.loses_request = lambda _sent: False
    await s4.publish(B, b"b", pointer=tx.transaction_id)
    await s1.manager.runner.commit(tx.transaction_id, changes=[])

    assert await s4.committed(B) == [b"b"]


async def test_a_new_member_that_does_not_answer_keeps_no_other_one_out(cluster: Cluster) -> None:
    s1 = cluster.servers["s1"]
    await cluster.join("s4")
    await cluster.join("s5")
    cluster.network.loses_request = lambda sent: sent.target == "s4"

    await cluster.tick()

    assert not s1.rows.has_acknowledged("s4", 1)
    assert s1.rows.has_acknowledged("s5", 1)


async def test_a_rollback_under_an_invalid_transaction_does_not_keep_it_on_the_list(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    pointer = (await s1.begin()).transaction_id
    await s2.publish(B, b"b", pointer=pointer)
    await s1.manager.runner.invalidate(pointer)
    await cluster.until(lambda: not s1.rows.is_carried(pointer))

    rolled_back = RollbackDetail(pointer, Offset(0, 0), Offset(NOON_MS * 2, 0))
    await s2.messaging.publisher.rollback(B, rolled_back)
    await cluster.tick()
    s1.manager.invalid_list.prune(also_lost=True)

    assert pointer not in s1.manager.durable.state.invalid
    assert s2.transactions._by_number == {}


async def test_a_late_report_holds_no_abort_up(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await s1.begin()
    checkpoint = (await s1.manager.runner.checkpoint(tx.transaction_id)).pointers[-1]
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    await s3.publish(C, b"c", pointer=checkpoint)
    await cluster.tick()
    report = next(each for each in cluster.network.calls if (each.source, each.name) == LATE)
    cluster.network.loses_request = lambda sent: (sent.target, sent.name) == ("s3", "end")

    aborting = asyncio.ensure_future(s1.manager.runner.abort(tx.transaction_id))
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))
    await cluster.network.carry(s2, report)
    cluster.network.loses_request = lambda _sent: False
    outcome = await asyncio.wait_for(aborting, WITHIN_S)

    assert outcome.state is EndedState.ABORTED
    assert await all_committed(cluster) == [[], [], []]


async def test_the_leader_remembers_an_owner_that_is_about_to_settle_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    forgotten: list[TopicId] = []
    monkeypatch.setattr(s1.view, "forget", forgotten.append)

    await s1.manager.runner.commit(tx.transaction_id, changes=[])
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))

    assert [each.name for each in cluster.network.calls].count("end") > 1
    assert forgotten == []


async def test_a_bug_during_the_end_of_a_transaction_does_not_stop_later_ones(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    bugs = [ZeroDivisionError()]

    async def before(sent: Sent) -> None:
        if sent.name == "end" and bugs:
            raise bugs.pop()

    cluster.network.before = before
    await s1.manager.runner.commit(tx.transaction_id, changes=[])
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))

    assert bugs == []
    assert (await all_committed(cluster))[1] == [b"b"]


async def test_rows_at_another_owner_that_hold_readers_back_too_long_end_their_transaction(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)

    await cluster.tick(29_000)
    state = (await s1.manager.runner.outcome(tx.transaction_id)).state
    await cluster.tick(2_000)
    await cluster.tick(1)

    assert state == "in_progress"
    outcome = await s1.manager.runner.outcome(tx.transaction_id)
    assert (outcome.state, outcome.reason) == (EndedState.INVALID, InvalidReason.BLOCKED_READERS)
    await cluster.until(lambda: not s1.rows.is_carried(tx.transaction_id))
    assert await s2.committed(B) == []


async def test_a_poll_in_a_transaction_at_another_server_wakes_when_that_ends(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    polling = asyncio.ensure_future(
        s2.messaging.polls.poll(B, Poll(tx=tx.transaction_id, wait_s=30))
    )
    await turns(100)

    await s1.manager.runner.abort(tx.transaction_id)

    with pytest.raises(TransactionNotInProgressError):
        await asyncio.wait_for(polling, WITHIN_S)


async def test_a_held_reader_at_another_owner_wakes_with_the_commit(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    polling = asyncio.ensure_future(
        s2.messaging.polls.poll(B, Poll(isolation=Isolation.COMMITTED, wait_s=30))
    )
    await turns(100)
    was_done = polling.done()

    await s1.manager.runner.commit(tx.transaction_id, changes=[])

    assert not was_done
    assert [each for _, each in (await asyncio.wait_for(polling, WITHIN_S)).items] == [b"b"]


async def test_a_server_explains_a_message_with_the_outcome_that_the_leader_knows(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await s1.begin()
    await s2.publish(B, b"b", pointer=tx.transaction_id)
    offset = s2.messaging.state.high_water_mark

    async def reason() -> str:
        found = await s2.messaging.explainer.explain(
            B,
            MessageId(*offset).hex(),
            Poll(isolation=Isolation.COMMITTED),
            may_read=lambda _: True,
        )
        assert isinstance(found["transaction"], dict)
        return f"{found['reason']} {found['transaction']['state']}"

    assert await reason() == "in_progress in_progress"
    await s1.manager.runner.abort(tx.transaction_id)
    assert await reason() == "aborted aborted"
