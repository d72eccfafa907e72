"""Replies and requests that are lost on the way: never a double effect, never a phantom."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tuff
from tests.client.proxy import Losses, losing
from tests.client.recording import AsyncParticipant, Participant, Record
from tests.http.process import ServerProcess
from tuff.address import TransportName
from tuff.errors import OutcomeUnknownError

FOR_EVER = 1_000


@contextmanager
def hanging_up(url: str) -> Iterator[tuple[str, Losses]]:
    with losing(url) as between:
        yield between


@contextmanager
def saying_504(url: str) -> Iterator[tuple[str, Losses]]:
    """It answers in the server's place: a commit that it had handed on was taken for refused."""
    with losing(url, losses=Losses(says=504)) as between:
        yield between


@contextmanager
def first_of_two_dies(url: str) -> Iterator[tuple[str, Losses]]:
    """One server at two addresses, like two servers of a cluster: the first one dies with the first
    lost call, and the second one loses the rest."""
    losses = Losses()
    with (
        losing(url, losses=losses, dies=True) as (first, _),
        losing(url, losses=losses) as (second, _),
    ):
        yield f"{first},{second}", losses


@pytest.fixture(params=[hanging_up, saying_504, first_of_two_dies])
def proxied(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[tuple[str, Losses]]:
    with request.param(server.url) as between:
        yield between


def blocking(url: str, topic: tuff.TopicId, record: Record, retries: int) -> None:
    with (
        tuff.Client(url, retries=retries) as client,
        client.transaction(Participant("a", record, changes=[topic.name.encode()])) as tx,
    ):
        tx.publish(topic, "once")


def on_a_loop(
    url: str,
    topic: tuff.TopicId,
    record: Record,
    retries: int,
    transport: TransportName = "http",
) -> None:
    async def main() -> None:
        async with tuff.AsyncClient(url, retries=retries, transport=transport) as client:
            participant = AsyncParticipant("a", record, changes=[topic.name.encode()])
            async with client.transaction(participant) as tx:
                await tx.publish(topic, "once")

    asyncio.run(main())


def over_a_session(url: str, topic: tuff.TopicId, record: Record, retries: int) -> None:
    on_a_loop(url, topic, record, retries, "auto")


Transact = Callable[[str, tuff.TopicId, Record, int], None]
BOTH = pytest.mark.parametrize("transact", [blocking, on_a_loop, over_a_session])


def committed(client: tuff.Client, topic: tuff.TopicId) -> list[bytes]:
    return [message.payload for message in client.poll(topic, isolation="committed")]


@BOTH
@pytest.mark.parametrize("call", ["transactions", "can-commit", "commit"])
@pytest.mark.parametrize("lose", [Losses.lose_reply, Losses.lose_request])
def test_a_lost_call_is_sent_again_and_executed_once(
    client: tuff.Client,
    topic: tuff.TopicId,
    proxied: tuple[str, Losses],
    transact: Transact,
    call: str,
    lose: Callable[[Losses, str], None],
) -> None:
    url, losses = proxied
    record = Record()
    lose(losses, call)

    transact(url, topic, record, 1)

    assert committed(client, topic) == [b"once"]
    assert record.steps[-1] == "a.post_commit"
    assert losses.seen.count(call) == 2


@BOTH
def test_the_outcome_of_a_commit_whose_reply_is_lost_is_found(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses], transact: Transact
) -> None:
    url, losses = proxied
    record = Record()
    losses.lose_reply("commit")

    transact(url, topic, record, 0)

    assert committed(client, topic) == [b"once"]
    assert record.steps[-1] == "a.post_commit"
    assert losses.seen[-2:] == ["commit", "invalidate"]


@BOTH
def test_a_commit_that_never_arrived_is_ended_and_rolled_back(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses], transact: Transact
) -> None:
    url, losses = proxied
    record = Record()
    losses.lose_request("commit")

    with pytest.raises(tuff.ConnectionLostError):
        transact(url, topic, record, 0)

    assert record.steps[-1] == "a.rollback_tx"
    assert client.transactions.get(record.pointer).state == "aborted"
    assert committed(client, topic) == []
    with pytest.raises(tuff.errors.TransactionAbortedError):
        client.transactions.commit(record.pointer)


@BOTH
@pytest.mark.parametrize(
    ("lose", "state"), [(Losses.lose_reply, "committed"), (Losses.lose_request, "committing")]
)
def test_without_a_response_no_participant_is_rolled_back(
    client: tuff.Client,
    topic: tuff.TopicId,
    proxied: tuple[str, Losses],
    transact: Transact,
    lose: Callable[..., None],
    state: str,
) -> None:
    url, losses = proxied
    record = Record()
    lose(losses, "commit", times=FOR_EVER)
    losses.lose_request("invalidate", times=FOR_EVER)

    with pytest.raises(OutcomeUnknownError) as caught:
        transact(url, topic, record, 1)

    assert caught.value.outcome_unknown
    assert record.steps[-1] == "a.commit_tx"
    assert client.transactions.get(record.pointer).state == state
    if state == "committing":
        client.transactions.abort(record.pointer)


async def test_a_publish_whose_session_breaks_is_sent_again_and_published_once(
    client: tuff.Client, topic: tuff.TopicId, server: ServerProcess
) -> None:
    with losing(server.url) as (url, losses):
        losses.lose_reply("publish")
        async with tuff.AsyncClient(url, transport="auto") as through:
            once = await through.publish(topic, "once")
            await through.publish(topic, "twice")

    assert [each.id for each in client.poll(topic)][:1] == list(once.ids)
    assert committed(client, topic) == [b"once", b"twice"]
    assert (losses.seen, losses.sessions) == (["publish"] * 3, 2)


@pytest.mark.parametrize("lose", [Losses.lose_reply, Losses.lose_request])
def test_a_publish_that_is_lost_is_sent_again_and_published_once(
    client: tuff.Client,
    topic: tuff.TopicId,
    proxied: tuple[str, Losses],
    lose: Callable[..., None],
) -> None:
    url, losses = proxied
    lose(losses, "publish", times=3)

    with tuff.Client(url) as through:
        once = through.publish(topic, "once")
        through.publish(topic, "twice")

    assert [each.id for each in client.poll(topic)][:1] == list(once.ids)
    assert committed(client, topic) == [b"once", b"twice"]


@pytest.mark.parametrize("at_once", [1, 8])
def test_the_batch_of_a_publisher_is_published_once(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses], at_once: int
) -> None:
    url, losses = proxied
    losses.lose_reply("publish", times=2)

    with tuff.Client(url) as through, through.publisher() as publisher:
        for number in range(at_once):
            publisher.publish(topic, str(number))

    assert committed(client, topic) == [b"%d" % number for number in range(at_once)]


def test_delayed_messages_whose_reply_is_lost_are_published_once(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses]
) -> None:
    url, losses = proxied
    losses.lose_reply("publish")

    with tuff.Client(url) as through:
        delayed = through.publish(topic, "later", delay=3600)

    assert [each.id for each in client.delayed.list(topic)] == list(delayed.delayed_ids)


def test_a_publish_without_repetitions_has_an_unknown_outcome(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses]
) -> None:
    url, losses = proxied
    losses.lose_reply("publish")

    with tuff.Client(url, retries=0) as through, pytest.raises(tuff.ConnectionLostError) as caught:
        through.publish(topic, "once")

    assert (caught.value.outcome_unknown, caught.value.retry_safe) == (True, False)
    assert committed(client, topic) == [b"once"]


async def test_the_http_library_does_not_repeat_a_put(
    client: tuff.Client, proxied: tuple[str, Losses]
) -> None:
    """The HTTP library repeats a PUT on a kept connection: a topic just created "existed"."""
    url, losses = proxied
    topic = tuff.TopicId("lost", "created")
    losses.lose_reply("created")

    async with tuff.AsyncClient(url) as through:
        await through.topics.namespaces()
        with pytest.raises(tuff.ConnectionLostError) as caught:
            await through.topics.create(topic)

    assert caught.value.outcome_unknown
    assert losses.seen.count("created") == 1
    assert client.topics.get(topic).generation == 1


async def test_a_put_whose_server_dies_may_have_been_executed(
    client: tuff.Client, server: ServerProcess
) -> None:
    """The second attempt of the HTTP library found no server, so the call seemed not sent."""
    topic = tuff.TopicId("lost", "created-before-the-end")

    with losing(server.url, dies=True) as (url, losses):
        losses.lose_reply(topic.name)
        async with tuff.AsyncClient(url) as through:
            await through.topics.namespaces()
            with pytest.raises(tuff.ConnectionLostError) as caught:
                await through.topics.create(topic)

    assert caught.value.outcome_unknown
    assert client.topics.get(topic).generation == 1


def test_a_run_whose_reply_is_lost_publishes_once(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses]
) -> None:
    url, losses = proxied
    losses.lose_reply("run", times=2)

    with tuff.Client(url) as through:
        through.transactions.run([tuff.connectors.PublishEntry(topic=topic, payloads=[b"once"])])

    assert committed(client, topic) == [b"once"]
    assert losses.seen.count("run") == 3


@BOTH
def test_an_abort_whose_reply_is_lost_is_repeated(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses], transact: Transact
) -> None:
    url, losses = proxied
    record = Record()
    record.fail["a.commit_tx"] = OSError("disk full")
    losses.lose_reply("abort")

    with pytest.raises(OSError, match="disk full") as caught:
        transact(url, topic, record, 1)

    assert not hasattr(caught.value, "__notes__")
    assert client.transactions.get(record.pointer).state == "aborted"
    assert committed(client, topic) == []


@pytest.mark.parametrize("before", ["f" * 40, 2**62], ids=["an id", "a time"])
def test_a_repeated_truncation_removes_nothing_that_was_published_after_the_first(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses], before: str | int
) -> None:
    """A place to come means all that is there now, and not all that is there at the second try."""
    url, losses = proxied
    client.publish(topic, "old")
    losses.lose_reply("truncate", meanwhile=lambda: client.publish(topic, "acknowledged"))

    with tuff.Client(url) as through:
        left = through.topics.truncate(topic, before)

    assert losses.seen.count("truncate") == 2
    assert [(each.id, each.payload) for each in client.poll(topic)] == [(left, b"acknowledged")]


def test_a_truncation_of_invalid_pointers_by_time_is_not_sent_again(
    client: tuff.Client, proxied: tuple[str, Losses]
) -> None:
    url, losses = proxied
    later: list[tuff.Transaction] = []

    def invalidate_one() -> None:
        later.append(client.transactions.start())
        client.transactions.invalidate(later[0])

    losses.lose_reply("truncate", meanwhile=invalidate_one)

    with tuff.Client(url) as through, pytest.raises(tuff.ConnectionLostError) as caught:
        through.transactions.truncate(before=2**50)

    assert caught.value.outcome_unknown
    assert later[0].transaction_id in client.transactions.invalids().invalids


def test_a_store_whose_reply_is_lost_ends_its_transaction(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses]
) -> None:
    url, losses = proxied
    losses.lose_reply("store")

    with (
        tuff.Client(url) as through,
        pytest.raises(tuff.ConnectionLostError),
        through.transaction() as tx,
    ):
        tx.publish(topic, b"x" * (2 << 20))

    assert list(client.poll(topic)) == []


def test_a_poll_that_is_lost_is_asked_again(
    client: tuff.Client, topic: tuff.TopicId, proxied: tuple[str, Losses]
) -> None:
    url, losses = proxied
    client.publish(topic, "here")
    losses.lose_reply("poll", times=2)

    with tuff.Client(url) as through:
        assert committed(through, topic) == [b"here"]
