"""The publisher: the order and ids of its messages, their futures, and how many wait."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from threading import Event, Thread

import pytest

import tuff
from tests.client.proxy import Losses, losing
from tests.http.process import ServerProcess

MINUTE_S = 60.0
SMALL_BATCH_BYTES = 1_000  # bytes: ten messages as those below
ANSWER_WITHIN_S = 20.0  # seconds; a future that is never settled fails the test after this
FILLER = "x" * 33  # with a number of three digits and what each costs: a hundred bytes
FILL_COUNT = 80  # messages in eight such batches


@pytest.fixture
def lossy(server: ServerProcess) -> Iterator[tuple[tuff.Client, Losses]]:
    """A client behind a proxy that loses the named requests and replies."""
    with losing(server.url) as (url, losses), tuff.Client(url, client_id="tests") as through:
        yield through, losses


def read(client: tuff.Client, topic: tuff.TopicId) -> list[tuple[tuff.MessageId, bytes]]:
    return [(message.id, message.payload) for message in client.poll(topic, limit=10_000)]


def test_each_future_has_the_id_of_its_message_and_the_order_is_kept(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy

    with client.publisher(topic) as publisher:
        futures = [publisher.send(f"{number}") for number in range(2_000)]

    told = [(future.result(), b"%d" % number) for number, future in enumerate(futures)]
    assert told == read(client, topic)
    assert losses.seen.count("publish") < 200


def test_every_thread_keeps_its_order(client: tuff.Client, topic: tuff.TopicId) -> None:
    def send(publisher: tuff.Publisher, name: str) -> None:
        for number in range(300):
            publisher.send(f"{name}{number}")

    with client.publisher(topic, linger=0, batch_bytes=5_000) as publisher:
        threads = [Thread(target=send, args=(publisher, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    payloads = [payload.decode() for _, payload in read(client, topic)]
    for name in "abcd":
        mine = [payload for payload in payloads if payload.startswith(name)]
        assert mine == [f"{name}{number}" for number in range(300)]


def test_a_flush_publishes_what_would_have_waited(client: tuff.Client, topic: tuff.TopicId) -> None:
    with client.publisher(topic, linger=MINUTE_S) as publisher:
        future = publisher.send("now")
        publisher.flush()

        assert read(client, topic) == [(future.result(0), b"now")]


def test_after_a_lost_reply_the_outcome_is_unknown_and_the_message_is_not_sent_again(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    losses.lose_reply("publish")
    publisher = client.publisher(topic, linger=MINUTE_S)
    lost = publisher.send("whether it is there, nobody told")

    with pytest.raises(tuff.ConnectionLostError) as caught:
        publisher.flush()
    kept = publisher.send("it goes on")
    publisher.close()

    assert caught.value.outcome_unknown
    assert lost.exception() is caught.value
    payloads = [payload for _, payload in read(client, topic)]
    assert payloads == [b"whether it is there, nobody told", b"it goes on"]
    assert kept.result()


def test_a_refusal_is_raised_by_each_future_of_the_batch_and_once_by_the_end(
    client: tuff.Client,
) -> None:
    nowhere = tuff.TopicId("client", "nowhere")
    futures: list[Future[tuff.MessageId]] = []

    def send_two() -> None:
        with client.publisher(nowhere) as publisher:
            futures.extend([publisher.send("a"), publisher.send("b")])

    with pytest.raises(tuff.TopicNotFoundError):
        send_two()

    assert [type(future.exception()) for future in futures] == [tuff.TopicNotFoundError] * 2


@pytest.mark.slow
def test_a_message_that_is_too_large_fails_alone(client: tuff.Client, topic: tuff.TopicId) -> None:
    publisher = client.publisher(topic)
    sent = [publisher.send(payload) for payload in ("before", b"x" * (17 << 20), "after")]

    with pytest.raises(tuff.RequestTooLargeError):
        publisher.close()

    assert [type(future.exception()) for future in sent] == [
        type(None), tuff.RequestTooLargeError, type(None),
    ]  # fmt: skip
    assert [payload for _, payload in read(client, topic)] == [b"before", b"after"]


def test_send_waits_while_eight_batches_are_in_memory(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on, is_full = Event(), Event()
    losses.delay("publish", until=goes_on)
    futures: list[Future[tuff.MessageId]] = []
    most_in_memory = 0

    def send_all(publisher: tuff.Publisher) -> None:
        nonlocal most_in_memory
        for number in range(3 * FILL_COUNT):
            futures.append(publisher.send(f"{number:03}{FILLER}"))
            if len(futures) == FILL_COUNT:
                is_full.set()
            open_count = sum(not future.done() for future in futures)
            most_in_memory = max(most_in_memory, open_count)

    with client.publisher(topic, batch_bytes=SMALL_BATCH_BYTES) as publisher:
        sender = Thread(target=send_all, args=(publisher,))
        sender.start()
        assert is_full.wait(30)
        goes_on.set()
        sender.join()

    assert most_in_memory <= FILL_COUNT
    assert len(read(client, topic)) == 3 * FILL_COUNT


def test_send_raises_once_the_buffer_stayed_full_for_max_block(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on = Event()
    losses.delay("publish", until=goes_on)

    with client.publisher(topic, buffer_messages=2, max_block=0.05) as publisher:
        publisher.send("a")
        publisher.send("b")
        with pytest.raises(tuff.BufferFullError, match=r"held 2 messages .* within 0\.05 s"):
            publisher.send("no room")
        goes_on.set()
        publisher.flush()
        publisher.send("c")

    assert [payload for _, payload in read(client, topic)] == [b"a", b"b", b"c"]


def test_messages_do_not_linger_while_others_wait_for_room(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(
        topic, linger=MINUTE_S, buffer_messages=2, max_block=ANSWER_WITHIN_S
    ) as publisher:
        futures = [publisher.send(f"{number}") for number in range(5)]
        assert futures[3].result(ANSWER_WITHIN_S)

    assert len(read(client, topic)) == 5


def test_a_publisher_has_every_acknowledgement_level(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(topic, ack=tuff.Ack.RECEIVED) as publisher:
        received = [publisher.send(f"{number}") for number in range(100)]
    with client.publisher(topic, ack="none") as without_ids:
        unanswered = [without_ids.send(f"{number}") for number in range(100, 200)]
    client.publish(topic, "durable")

    found = read(client, topic)
    assert [payload for _, payload in found[:-1]] == [b"%d" % number for number in range(200)]
    assert [future.result() for future in received] == [id for id, _ in found[:100]]
    assert {future.result() for future in unanswered} == {None}


def test_a_message_can_be_taken_back_until_it_is_on_its_way(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(topic, linger=MINUTE_S) as publisher:
        publisher.send("a")
        assert publisher.send("b").cancel()
        publisher.send("c")

    assert [payload for _, payload in read(client, topic)] == [b"a", b"c"]


def test_a_callback_may_send_and_never_waits_for_itself(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    refused: list[BaseException | None] = []

    def again(future: Future[tuff.MessageId]) -> None:
        for number in range(2 * FILL_COUNT):
            publisher.send(f"{number:03}{FILLER}")
        try:
            publisher.flush()
        except RuntimeError as error:
            refused.append(error)

    publisher = client.publisher(topic, batch_bytes=SMALL_BATCH_BYTES)
    publisher.send("first").add_done_callback(again)
    publisher.close()

    assert len(refused) == 1
    assert len(read(client, topic)) == 1 + 2 * FILL_COUNT


def close(publisher: tuff.Publisher) -> None:
    with suppress(tuff.TopicNotFoundError):
        publisher.close()


def test_a_callback_that_ends_the_program_ends_no_publisher(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    """The other futures of its batch were never settled, and later messages waited for ever."""
    nowhere = tuff.TopicId("client", "nowhere")
    publisher = client.publisher(topic, linger=MINUTE_S)
    failing = client.publisher(nowhere, linger=MINUTE_S)
    together = [publisher.send("a"), publisher.send("b")]
    refused = [failing.send("a"), failing.send("b")]
    for future in (together[0], refused[0]):
        future.add_done_callback(lambda _: sys.exit(3))
    for each in (publisher, failing):
        Thread(target=close, args=(each,), daemon=True).start()

    ids = [future.result(ANSWER_WITHIN_S) for future in together]
    errors = [type(future.exception(ANSWER_WITHIN_S)) for future in refused]

    assert ids == [message.id for message in client.poll(topic)]
    assert errors == [tuff.TopicNotFoundError] * 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_whose_thread_has_ended_fails_all_messages_that_wait(
    client: tuff.Client, topic: tuff.TopicId, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(call: object, **_named: object) -> None:
        waiting.append(publisher.send("behind it"))
        sys.exit(3)

    waiting: list[Future[tuff.MessageId]] = []
    publisher = client.publisher(topic)
    monkeypatch.setattr(client._transport, "send", end)
    under_way = publisher.send("on its way")

    told = under_way.exception(ANSWER_WITHIN_S), waiting[0].exception(ANSWER_WITHIN_S)

    assert [getattr(error, "outcome_unknown", None) for error in told] == [True, False]
    with pytest.raises(RuntimeError, match="closed"):
        publisher.send("late")
    with pytest.raises(tuff.ConnectionLostError, match="has ended"):
        publisher.close()


def test_sent_messages_are_published_even_if_the_block_fails(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    def fail(to: tuff.TopicId) -> None:
        with client.publisher(to, linger=MINUTE_S) as publisher:
            publisher.send("sent")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(topic)
    with pytest.raises(ZeroDivisionError) as caught:
        fail(tuff.TopicId("client", "nowhere"))

    assert [payload for _, payload in read(client, topic)] == [b"sent"]
    assert "TopicNotFoundError" in caught.value.__notes__[0]


def test_a_closed_publisher_accepts_no_message(client: tuff.Client, topic: tuff.TopicId) -> None:
    publisher = client.publisher(topic)
    publisher.close()
    publisher.close()

    with pytest.raises(RuntimeError, match="closed"):
        publisher.send("late")


def test_a_publisher_refuses_anything_but_str_or_bytes_at_once(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(topic) as publisher, pytest.raises(TypeError):
        publisher.send(5)
