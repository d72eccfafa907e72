"""The client against a real server (protocol §2, §3, §5, §7)."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest

import tuff
from tests.http.client import until
from tests.http.process import ServerProcess, serve
from tuff import topic_calls
from tuff.address import Address
from tuff.errors import ConnectionLostError
from tuff.protocol.errors import (
    HoldNotFoundError,
    InternalError,
    PositionNotFoundError,
    TopicNotFoundError,
)
from tuff.read_calls import poll_batch
from tuff.requests_and_responses import Response

ALL = tuff.connectors.PollQuestion()


def payloads(poll: tuff.Poll) -> list[bytes]:
    return [message.payload for message in poll]


def test_a_topic_is_created_changed_listed_and_deleted(client: tuff.Client) -> None:
    topic = tuff.TopicId("life", "one")

    client.topics.create(topic, ttl=60, properties={"owner": "me"})

    assert client.topics.get(topic) == tuff.admin.TopicInfo(topic, 1, {"ttl": "60", "owner": "me"})
    client.topics.update(topic, ttl=5)
    assert client.topics.get(topic).properties == {"ttl": "5", "owner": "me"}
    assert client.topics.list("life") == ["one"]
    assert "life" in client.topics.namespaces()
    with pytest.raises(tuff.TopicExistsError):
        client.topics.create(topic)
    client.topics.delete(topic)
    with pytest.raises(TopicNotFoundError):
        client.topics.get(topic)


def test_an_update_changes_what_it_names_and_says_what_expires_by_it(client: tuff.Client) -> None:
    """`update(topic, partitions=2)` put the ttl back to the server's default, and messages of a
    topic that kept them for a year were gone."""
    topic = tuff.TopicId("life", "kept")
    client.topics.create(topic, ttl=31_536_000, properties={"owner": "me"})
    client.publish(topic, "kept")

    first = client.topics.update(topic, partitions=2)
    assert first.properties == {"ttl": "31536000", "owner": "me"}
    assert (first.partitions, first.expiring) == ((0, 1), None)
    client.topics.update(topic, properties={"owner": None, "team": "red"})
    assert client.topics.get(topic).properties == {"ttl": "31536000", "team": "red"}

    until(lambda: client.topics.update(topic, ttl=1, dry_run=True).expiring)
    dry = client.topics.update(topic, ttl=1, dry_run=True)
    assert dry.expiring is not None
    assert (dry.expiring.count, dry.properties["ttl"]) == (1, "1")
    assert client.topics.get(topic).properties == {"ttl": "31536000", "team": "red"}
    assert payloads(client.poll(topic.partition(0))) == [b"kept"]

    done = client.topics.update(topic, ttl=timedelta(seconds=1))
    assert done.expiring is not None
    assert done.expiring.count == 1
    assert payloads(client.poll(topic.partition(0))) == []


def test_a_topic_that_may_exist_is_left_as_it_is(client: tuff.Client) -> None:
    client.topics.create("life:perhaps", ttl=60, exist_ok=True)
    client.publish("life:perhaps", "kept")

    client.topics.create("life:perhaps", ttl=5, partitions=3, exist_ok=True)

    assert client.topics.get("life:perhaps").properties == {"ttl": "60"}
    assert payloads(client.poll("life:perhaps")) == [b"kept"]
    with pytest.raises(tuff.TopicExistsError):
        client.topics.create("life:perhaps", exist_ok=False)


def test_a_reader_in_a_transaction_is_explained(client: tuff.Client, topic: tuff.TopicId) -> None:
    writer = client.transactions.start()
    (id,) = client.publish(topic, "held", transaction=writer).ids
    reader = client.transactions.start()

    reasons = [
        client.explain(topic, id, transaction=given).reason
        for given in (reader, reader.transaction_id, writer.transaction_id, None)
    ]
    client.transactions.abort(reader)
    client.transactions.abort(writer)

    assert reasons[:2] == ["in_progress", "in_progress"]
    assert reasons[2:] == ["visible", "in_progress"]
    with pytest.raises(ValueError, match="at most one of isolation and transaction"):
        client.explain(topic, id, transaction=reader, isolation="all")


def test_messages_come_back_in_order_and_page_by_page(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    published = client.publish(topic, "one", b"\xff\x00", "drei €")

    first = client.poll(topic, limit=2)
    rest = client.poll(topic, first.next_id, inclusive=False)

    assert payloads(first) == [b"one", b"\xff\x00"]
    assert payloads(rest) == ["drei €".encode()]
    assert (first.caught_up, rest.caught_up) == (False, True)
    assert first[0].id == published.ids[0]
    assert rest[-1].id == published.ids[-1] == client.offsets(topic).end


def test_a_commit_makes_everything_visible_at_once(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, "one", "two")
        assert payloads(client.poll(topic)) == []

    assert payloads(client.poll(topic, isolation="committed")) == [b"one", b"two"]
    assert client.transactions.overview().in_progress == ()


def test_a_transaction_reads_in_its_own_snapshot(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, "before")
    with client.transaction() as tx:
        with client.transaction() as other:
            other.publish(topic, "since")

        assert payloads(tx.poll(topic)) == [b"before"]
        by_value = client.poll(topic, transaction=tx.transaction)
        assert payloads(by_value) == [b"before"]


def test_a_message_published_under_a_pointer_holds_committed_readers_back(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    transaction = client.transactions.start()
    published = client.publish(topic, "undecided", transaction=transaction)
    assert published.rollback is not None

    held = client.poll(topic, isolation="committed")
    assert (payloads(held), held.blocked_by) == ([], transaction.transaction_id)
    assert client.offsets(topic, isolation="committed").blocked_by == transaction.transaction_id

    client.transactions.invalidate(transaction)
    assert client.poll(topic, isolation="committed").blocked_by is None
    assert client.transactions.get(transaction).reason == "invalidated"
    listed = client.transactions.invalids()
    assert transaction.transaction_id in listed.invalids
    assert transaction.transaction_id in listed.reasons["invalidated"]
    assert client.transactions.abort(transaction) == "aborted"


def test_a_conflict_names_the_key_and_the_other(server: ServerProcess, client: tuff.Client) -> None:
    late = client.transactions.start()
    with tuff.Client(server.url, client_id="faster") as other:
        early = other.transactions.start()
        other.transactions.commit(early, changes=[b"apple"])

    with pytest.raises(tuff.TransactionConflictError) as caught:
        client.transactions.can_commit(late, [b"pear", b"apple"])

    assert (caught.value.key, caught.value.transaction, caught.value.client) == (
        b"apple",
        early.transaction_id,
        "faster",
    )
    client.transactions.abort(late)


def test_a_context_that_only_reads_commits(client: tuff.Client, topic: tuff.TopicId) -> None:
    with client.transaction() as tx:
        transaction = tx.transaction
        tx.poll(topic)

    assert client.transactions.get(transaction).state == "committed"


def test_threads_share_a_client(client: tuff.Client, topic: tuff.TopicId) -> None:
    def publish_some(name: str) -> None:
        for number in range(20):
            client.publish(topic, f"{name}{number}")

    threads = [Thread(target=publish_some, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = [payload.decode() for payload in payloads(client.poll(topic))]
    for name in "abcd":
        assert [one for one in found if one[0] == name] == [f"{name}{n}" for n in range(20)]


def test_a_restart_of_the_server_loses_no_call_on_a_kept_connection(tmp_path: Path) -> None:
    """A publish was lost on a connection that the server had closed, with an unknown outcome."""
    topic = tuff.TopicId("default", "restarts")
    with serve(tmp_path) as first:
        client = tuff.Client(first.url, retries=0)
        client.topics.create(topic)
    with serve(tmp_path, port=first.port):
        client.publish(topic, "after a restart")

    with pytest.raises(ConnectionLostError) as caught:
        client.publish(topic, "without a server")

    assert not caught.value.outcome_unknown
    with serve(tmp_path, port=first.port), client:
        client.publish(topic, "after another one")
        assert payloads(client.poll(topic)) == [b"after a restart", b"after another one"]


def test_a_long_poll_may_take_its_wait_on_top_of_the_timeout(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with tuff.Client(server.url, timeout=2.0, retries=0) as client:
        assert len(client.poll(topic, wait=2.2)) == 0


def test_a_topic_is_truncated_only_up_to_its_holds(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    first, second = (client.publish(topic, word).ids[0] for word in ("1", "2"))
    client.holds.set(topic, "slow", first, max_age=60)

    with pytest.raises(tuff.errors.TopicHeldError):
        client.topics.truncate(topic, second)
    assert len(client.poll(topic)) == 2
    client.holds.delete(topic, "slow")

    assert client.topics.truncate(topic, second) == second
    assert payloads(client.poll(topic)) == [b"2"]
    assert client.topics.truncate(topic, second.publish_timestamp_ms + 60_000) is None


def test_a_batch_has_the_messages_of_a_poll(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, "one", b"\xff\x00")
    with client.transaction() as tx:
        tx.publish(topic, "three")

    poll = client.poll(topic)
    found = client.poll_batch(topic, ALL)
    first = client.poll_batch(topic, tuff.connectors.PollQuestion(limit=2))

    ids = [tuff.MessageId.from_bytes(each) for each in found.batch["id"].to_pylist()]
    payloads = found.batch["value"].to_pylist()
    assert [tuff.Message(*each) for each in zip(ids, payloads, strict=True)] == list(poll)
    assert found.batch["write_pointer"].null_count == 2
    assert (len(found), found.next_id, found.caught_up) == (3, poll.next_id, True)
    assert (len(first), first.next_id, first.caught_up) == (2, ids[1], False)


def test_a_batch_says_which_database_holds_it_back(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    transaction = client.transactions.start()
    client.publish(topic, "held back", transaction=transaction)
    client.transactions.prepare(transaction, database="shop")

    found = client.poll_batch(topic, tuff.connectors.PollQuestion(isolation="committed"))

    poll = client.poll(topic)
    assert (found.blocked_by, found.blocked_by_database) == (transaction.transaction_id, "shop")
    assert found.blocked_since_ms == poll.blocked_since_ms is not None
    client.transactions.resolve(transaction, "abort")


def test_a_batch_has_the_attributes_if_they_are_asked_for(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, tuff.NewMessage("one", key="k", tags=["eu"], headers={"a": "b"}), "two")

    plain = client.poll_batch(topic, ALL)
    found = client.poll_batch(topic, ALL, attributes=True)

    assert plain.batch.schema.names == found.batch.schema.names[:-3]
    assert found.batch.select(["key", "tags", "headers"]).to_pylist() == [
        {"key": b"k", "tags": ["eu"], "headers": [{"name": "a", "value": b"b"}]},
        {"key": None, "tags": None, "headers": None},
    ]


def test_parts_are_read_side_by_side(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, *[str(number) for number in range(9)])

    parts = client.topics.splits(topic, 3)
    read = [
        client.poll(topic, part.start, inclusive=part.start is None, through=part.end)
        for part in parts
    ]

    assert (parts.generation, len(parts)) == (1, 3)
    assert [len(each) for each in read] == [3, 3, 3]
    assert [message for each in read for message in each] == list(client.poll(topic))
    behind = client.topics.splits(topic, 2, start=read[0][-1].id, end=parts[1].end)
    assert (behind[0].start, behind[-1].end) == (read[0][-1].id, parts[1].end)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/vnd.apache.arrow.stream"]
)
def test_a_reply_that_is_no_arrow_stream_is_an_internal_error(content_type: str) -> None:
    headers = {"tuff-next": "0" * 40, "content-type": content_type}

    with pytest.raises(InternalError, match="in a form that no Tuff server uses"):
        poll_batch(tuff.TopicId("a", "b"), ALL).answer(Response(200, headers, b"[]"))


def test_holds_and_positions_are_set_listed_and_removed(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    published = client.publish(topic, "a", "b")

    hold = client.holds.set(topic, "job", published.ids[-1], max_age=9.5)
    position = client.positions.set(topic, "job", published.ids[0])

    assert (hold.first, hold.expires_at_ms - hold.set_at_ms) == (published.ids[-1], 9_500)
    assert client.holds.list(topic) == [hold]
    assert (position.position, position.generation) == (published.ids[0], 1)
    assert client.positions.get(topic, "job") == position
    assert client.positions.list(topic) == [position]
    client.holds.delete(topic, "job")
    client.positions.delete(topic, "job")
    with pytest.raises(HoldNotFoundError):
        client.holds.delete(topic, "job")
    with pytest.raises(PositionNotFoundError):
        client.positions.get(topic, "job")


def test_a_server_that_is_down_differs_from_a_proxy_without_a_server() -> None:
    address = Address(url="http://x", timeout_s=1, connect_timeout_s=1, token=None)

    def told_by(body: bytes) -> tuff.admin.Health:
        response = Response(503, {}, body)
        address.require_no_proxy(topic_calls.HEALTH, response)
        return topic_calls.HEALTH.answer(response)

    body = b'{"status":"down","version":"9","checks":{"disk":{"status":"down","detail":"full"}}}'

    told = told_by(body)

    assert told == tuff.admin.Health(
        status="down", checks={"disk": tuff.admin.HealthCheck("down", "full")}, version="9"
    )
    with pytest.raises(tuff.ConnectionLostError, match="a proxy says 503"):
        told_by(b"<html>away</html>")
    stopping = b'{"status":503,"code":"shutting_down","detail":"the server stops"}'
    with pytest.raises(tuff.TuffError, match="the server stops"):
        told_by(stopping)


def test_an_older_server_has_no_version() -> None:
    body = b'{"status":"ok","checks":{"clock":{"status":"ok"}}}'

    told = topic_calls.HEALTH.answer(Response(200, {}, body))

    assert (told.version, told.checks["clock"].detail) == (None, "")


async def test_both_clients_have_the_same_health_checks(
    server: ServerProcess, client: tuff.Client
) -> None:
    async with tuff.AsyncClient(server.url) as on_loop:
        assert (await on_loop.health()).checks.keys() == client.health().checks.keys()


Misuse = Callable[[tuff.Client, tuff.TopicId], object]


@pytest.mark.parametrize(
    ("misuse", "kind"),
    [
        (lambda client, topic: client.poll(topic, isolation="nope"), ValueError),
        (lambda client, topic: client.poll(topic, undecided="nope"), ValueError),
        (lambda client, topic: client.poll(topic, limit=-1), ValueError),
        (lambda client, topic: client.poll(topic, wait=-1), ValueError),
        (lambda client, topic: client.publish(topic), ValueError),
        (lambda client, topic: client.publish(topic, "x", ttl=-1), ValueError),
        (lambda client, topic: client.publish(topic, "half a pair \ud800"), ValueError),
        (lambda client, topic: client.transaction(type="nope").__enter__(), ValueError),
        (lambda client, topic: client.transactions.truncate(), ValueError),
        (lambda client, topic: tuff.TopicId("no spaces", "here"), ValueError),
        (lambda client, topic: tuff.MessageId.from_hex("nope"), ValueError),
        (lambda client, topic: client.publish(topic, 5), TypeError),
        (lambda client, topic: client.publish(topic, "x", transaction="5"), TypeError),
        (lambda client, topic: client.publish(topic, "x", ttl="5"), TypeError),
        (lambda client, topic: client.transactions.can_commit(5, ["a string"]), TypeError),
    ],
)
def test_a_wrong_value_is_a_value_error_and_a_wrong_type_a_type_error(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse, kind: type[Exception]
) -> None:
    """Whether the client finds it or the server."""
    with pytest.raises(kind):
        misuse(client, topic)


def test_a_closed_client_is_in_the_wrong_state(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.close()

    with pytest.raises(tuff.WrongStateError) as caught:
        client.poll(topic)
    assert isinstance(caught.value, tuff.errors.ClientClosedError)
    assert isinstance(caught.value, RuntimeError)


def test_a_publish_is_acknowledged_at_the_level_that_was_asked_for(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    durable = client.publish(topic, "a", ack=tuff.Ack.DURABLE)
    received = client.publish(topic, "b", "c", ack=tuff.Ack.RECEIVED)
    unacknowledged = client.publish(topic, "d", ack="none")
    last = client.publish(topic, "e")

    found = [message.id for message in client.poll(topic)]
    assert unacknowledged == tuff.Published()
    assert [durable.ids[0], received.ids[0], received.ids[-1]] == found[:3]
    assert last.ids[-1] == found[4]


def test_a_wrong_acknowledgement_level_is_refused(client: tuff.Client, topic: tuff.TopicId) -> None:
    with pytest.raises(ValueError, match='ack is none, received or durable, not "all"'):
        client.publish(topic, "a", ack="all")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(tuff.TopicNotFoundError):
        client.publish(tuff.TopicId("client", "nowhere"), "a", ack="none")
    tx = client.transactions.start()
    with pytest.raises(
        tuff.errors.BadRequestError, match="only for a publish without a transaction"
    ):
        client.publish(topic, "a", transaction=tx, ack="received")

    assert not client.poll(topic)


def test_a_missing_topic_is_a_fact_and_what_a_program_does_follows_it(client: tuff.Client) -> None:
    with pytest.raises(tuff.TopicNotFoundError) as caught:
        client.publish("client:missing/3", "x")

    assert caught.value.detail == "there is no topic client:missing:3"
    assert str(caught.value) == (
        'there is no topic client:missing:3; client.topics.create("client:missing") creates it'
    )
