"""Messages of prepared transactions that hold readers back too long, where other servers own the
topics (decision 0045, section 2)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.transaction_servers import Cluster, Sent, Server, turns
from tuff.protocol.errors import OwnershipMovingError, TransactionsUnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry

B, C = TopicId("ns", "b"), TopicId("ns", "c")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three servers; s1 leads, and the others have a topic each."""
    made = Cluster(tmp_path)
    await made.start("s1", "s2", "s3", topics={B: "s2", C: "s3"})
    yield made
    await made.close()


async def prepared(leader: Server) -> int:
    """A transaction that is prepared with a message in each topic."""
    tx = await leader.begin()
    entries = [PublishEntry(topic=topic, payloads=[b"held"]) for topic in (B, C)]
    await leader.manager.runner.prepare(
        tx.transaction_id, database="db", changes=[], publish=entries
    )
    return tx.transaction_id


async def resolve(leader: Server, tx: int, *, commits: bool = True) -> None:
    runner = leader.manager.runner
    await (runner.commit_prepared if commits else runner.abort_prepared)(tx)


async def committed(cluster: Cluster) -> list[list[bytes]]:
    return [await (await cluster.owner(topic)).committed(topic) for topic in (B, C)]


async def pass_max_block(cluster: Cluster) -> None:
    await cluster.tick()  # the leader learns since when readers wait
    await cluster.tick(31_000)
    await turns(300)


def count(cluster: Cluster, name: str) -> int:
    return len([each for each in cluster.network.calls if each.name == name])


@pytest.mark.parametrize("commits", [True, False])
async def test_readers_at_other_owners_pass_messages_that_return_behind_them(
    cluster: Cluster, *, commits: bool
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await prepared(s1)
    await s2.publish(B, b"later")

    held = await committed(cluster)
    await pass_max_block(cluster)
    passed = await committed(cluster)
    await resolve(s1, tx, commits=commits)
    await cluster.until(lambda: not s1.rows.is_carried(tx))

    assert held == [[], []]
    assert passed == [[b"later"], []]
    returned = [b"held"] if commits else []
    assert await committed(cluster) == [[b"later", *returned], returned]


async def test_messages_are_set_aside_once(cluster: Cluster) -> None:
    tx = await prepared(cluster.servers["s1"])
    await pass_max_block(cluster)

    for _ in range(5):
        await cluster.tick()

    assert count(cluster, "aside") == 2  # one for each owner
    assert tx not in cluster.servers["s1"].rows.published_by(cluster.now_ms)


@pytest.mark.parametrize("commits", [True, False])
async def test_messages_that_are_aside_move_with_their_topic_and_survive_the_leader(
    cluster: Cluster, *, commits: bool
) -> None:
    s1, s2, s3 = cluster.servers.values()
    tx = await prepared(s1)
    await pass_max_block(cluster)
    await s2.publish(B, b"later")
    await cluster.move(B, "s3")
    await cluster.kill("s1")
    await cluster.elect("s2")

    await resolve(s2, tx, commits=commits)
    await cluster.until(lambda: not s2.rows.is_carried(tx))

    returned = [b"held"] if commits else []
    assert await s3.committed(B) == [b"later", *returned]
    assert await s3.committed(C) == returned


async def test_a_call_that_was_given_up_sets_nothing_aside_when_it_arrives(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await prepared(s1)
    lost: list[Sent] = []

    def loses(sent: Sent) -> bool:
        if sent.name == "aside" and sent.target == "s2":
            lost.append(sent)
        return sent in lost

    cluster.network.loses_request = loses
    await pass_max_block(cluster)
    await resolve(s1, tx)
    before = await s2.committed(B)
    with pytest.raises(TransactionsUnavailableError, match="given up"):
        raise await cluster.network.refusal(s2, lost[0])
    await cluster.until(lambda: not s1.rows.is_carried(tx))

    assert before == await s2.committed(B) == [b"held"]


async def test_a_resolve_waits_until_no_call_can_arrive_any_more(cluster: Cluster) -> None:
    s1, _, _ = cluster.servers.values()
    tx = await prepared(s1)
    cluster.network.loses_request = lambda sent: sent.name in ("aside", "close")
    await pass_max_block(cluster)

    resolving = s1.spawn(resolve(s1, tx))
    await turns(500)
    has_waited = not resolving.done()
    cluster.network.loses_request = lambda _sent: False
    await resolving

    assert has_waited
    assert await committed(cluster) == [[b"held"], [b"held"]]


async def test_a_lost_reply_is_asked_for_again(cluster: Cluster) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await prepared(s1)
    await s2.publish(B, b"later")
    cluster.network.loses_reply = lambda sent: sent.name == "aside"
    await pass_max_block(cluster)
    cluster.network.loses_reply = lambda _sent: False
    await cluster.tick()

    passed = await s2.committed(B)
    await resolve(s1, tx)
    await cluster.until(lambda: not s1.rows.is_carried(tx))

    assert passed == [b"later"]
    assert await s2.committed(B) == [b"later", b"held"]


async def test_a_topic_that_has_moved_is_set_aside_by_its_new_owner(cluster: Cluster) -> None:
    s1, s2, s3 = cluster.servers.values()
    await prepared(s1)
    await s2.publish(B, b"later")
    await cluster.move(B, "s3")  # which the leader does not know

    await pass_max_block(cluster)
    await cluster.until(lambda: not s1.rows.published_by(cluster.now_ms))

    assert await s3.committed(B) == [b"later"]


async def test_an_owner_sets_nothing_aside_for_a_topic_that_another_one_has(
    cluster: Cluster,
) -> None:
    s1, s2, _ = cluster.servers.values()
    tx = await prepared(s1)
    body = {"number": 1 << 40, "pointers": [tx], "topics": [str(C)], "epoch": 1, "to": 1}

    with pytest.raises(OwnershipMovingError):
        raise await cluster.network.refusal(s2, Sent("s1", "s2", "aside", body))
