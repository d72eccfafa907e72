"""The publisher: the order and ids of its messages, their futures, and how many wait."""

import socket
import subprocess
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
ANSWER_WITHIN_S = 60.0  # seconds; a future that is never settled fails the test after this
FILLER = "x" * 33  # with a number of three digits and what each costs: a hundred bytes
FILL_COUNT = 80  # messages in eight such batches


@pytest.fixture
def lossy(server: ServerProcess) -> Iterator[tuple[tuff.Client, Losses]]:
    """A client behind a proxy that loses the named requests and replies."""
    with losing(server.url) as (url, losses), tuff.Client(url, client_id="tests") as through:
        yield through, losses


def id_of(future: Future[tuff.Published]) -> tuff.MessageId:
    """The id of the one message of a publish."""
    (found,) = future.result(ANSWER_WITHIN_S).ids
    return found


def read(client: tuff.Client, topic: tuff.TopicId) -> list[tuple[tuff.MessageId, bytes]]:
    return [(message.id, message.payload) for message in client.poll(topic, limit=10_000)]


def test_each_future_has_the_id_of_its_message_and_the_order_is_kept(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy

    with client.publisher() as publisher:
        futures = [publisher.publish(topic, f"{number}") for number in range(2_000)]

    told = [(id_of(future), b"%d" % number) for number, future in enumerate(futures)]
    assert told == read(client, topic)
    assert losses.seen.count("publish") < 200


def test_every_thread_keeps_its_order(client: tuff.Client, topic: tuff.TopicId) -> None:
    def send(publisher: tuff.Publisher, name: str) -> None:
        for number in range(300):
            publisher.publish(topic, f"{name}{number}")

    with client.publisher(linger=0, batch_bytes=5_000) as publisher:
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
    with client.publisher(linger=MINUTE_S) as publisher:
        future = publisher.publish(topic, "now")
        publisher.flush()

        assert read(client, topic) == [(id_of(future), b"now")]


def test_after_a_lost_reply_the_batch_is_sent_again_and_published_once(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    losses.lose_reply("publish")
    publisher = client.publisher(linger=MINUTE_S)
    repeated = publisher.publish(topic, "once")

    publisher.flush()
    kept = publisher.publish(topic, "it goes on")
    publisher.close()

    told = [(id_of(repeated), b"once"), (id_of(kept), b"it goes on")]
    assert told == read(client, topic)
    assert losses.seen.count("publish") == 3


def test_without_ids_the_outcome_after_a_lost_reply_is_unknown_and_nothing_is_sent_again(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    losses.lose_reply("publish")
    publisher = client.publisher(linger=MINUTE_S, ack="none")
    lost = publisher.publish(topic, "whether it is there, nobody told")

    with pytest.raises(tuff.ConnectionLostError) as caught:
        publisher.flush()
    kept = publisher.publish(topic, "it goes on")
    publisher.close()

    assert caught.value.outcome_unknown
    assert lost.exception() is caught.value
    assert kept.result() == tuff.Published()
    assert losses.seen.count("publish") == 2
    client.publish(topic, "durable")
    payloads = [payload for _, payload in read(client, topic)]
    assert payloads == [b"whether it is there, nobody told", b"it goes on", b"durable"]


def test_a_refusal_is_raised_by_each_future_of_the_batch_and_once_by_the_end(
    client: tuff.Client,
) -> None:
    nowhere = tuff.TopicId("client", "nowhere")
    futures: list[Future[tuff.Published]] = []

    def send_two() -> None:
        with client.publisher() as publisher:
            futures.extend([publisher.publish(nowhere, "a"), publisher.publish(nowhere, "b")])

    with pytest.raises(tuff.TopicNotFoundError):
        send_two()

    assert [type(future.exception()) for future in futures] == [tuff.TopicNotFoundError] * 2


@pytest.mark.slow
def test_a_message_that_is_too_large_fails_alone(client: tuff.Client, topic: tuff.TopicId) -> None:
    publisher = client.publisher()
    sent = [publisher.publish(topic, payload) for payload in ("before", b"x" * (17 << 20), "after")]

    with pytest.raises(tuff.errors.RequestTooLargeError):
        publisher.close()

    assert [type(future.exception()) for future in sent] == [
        type(None), tuff.errors.RequestTooLargeError, type(None),
    ]  # fmt: skip
    assert [payload for _, payload in read(client, topic)] == [b"before", b"after"]


def test_publish_waits_while_eight_batches_are_in_memory(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on, is_full = Event(), Event()
    losses.delay("publish", until=goes_on)
    futures: list[Future[tuff.Published]] = []
    most_in_memory = 0

    def send_all(publisher: tuff.Publisher) -> None:
        nonlocal most_in_memory
        for number in range(3 * FILL_COUNT):
            futures.append(publisher.publish(topic, f"{number:03}{FILLER}"))
            if len(futures) == FILL_COUNT:
                is_full.set()
            open_count = sum(not future.done() for future in futures)
            most_in_memory = max(most_in_memory, open_count)

    with client.publisher(batch_bytes=SMALL_BATCH_BYTES) as publisher:
        sender = Thread(target=send_all, args=(publisher,))
        sender.start()
        assert is_full.wait(ANSWER_WITHIN_S)
        goes_on.set()
        sender.join()

    assert most_in_memory <= FILL_COUNT
    assert len(read(client, topic)) == 3 * FILL_COUNT


def test_publish_raises_once_the_buffer_stayed_full_for_max_block(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    goes_on = Event()
    losses.delay("publish", until=goes_on)

    with client.publisher(buffer_messages=2, max_block=0.05) as publisher:
        publisher.publish(topic, "a")
        publisher.publish(topic, "b")
        with pytest.raises(tuff.errors.BufferFullError, match=r"held 2 messages .* within 0\.05 s"):
            publisher.publish(topic, "no room")
        goes_on.set()
        publisher.flush()
        publisher.publish(topic, "c")

    assert [payload for _, payload in read(client, topic)] == [b"a", b"b", b"c"]


def test_messages_do_not_linger_while_others_wait_for_room(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(
        linger=MINUTE_S, buffer_messages=2, max_block=ANSWER_WITHIN_S
    ) as publisher:
        futures = [publisher.publish(topic, f"{number}") for number in range(5)]
        assert id_of(futures[3])

    assert len(read(client, topic)) == 5


def test_a_publisher_has_every_acknowledgement_level(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(ack=tuff.Ack.RECEIVED) as publisher:
        received = [publisher.publish(topic, f"{number}") for number in range(100)]
    with client.publisher(ack="none") as without_ids:
        unanswered = [without_ids.publish(topic, f"{number}") for number in range(100, 200)]
    client.publish(topic, "durable")

    found = read(client, topic)
    assert [payload for _, payload in found[:-1]] == [b"%d" % number for number in range(200)]
    assert [id_of(future) for future in received] == [id for id, _ in found[:100]]
    assert {future.result() for future in unanswered} == {tuff.Published()}


def test_a_message_can_be_taken_back_until_it_is_on_its_way(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(linger=MINUTE_S) as publisher:
        publisher.publish(topic, "a")
        assert publisher.publish(topic, "b").cancel()
        publisher.publish(topic, "c")

    assert [payload for _, payload in read(client, topic)] == [b"a", b"c"]


def test_a_callback_may_publish_and_never_waits_for_itself(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    refused: list[BaseException | None] = []

    def again(future: Future[tuff.Published]) -> None:
        for number in range(2 * FILL_COUNT):
            publisher.publish(topic, f"{number:03}{FILLER}")
        try:
            publisher.flush()
        except RuntimeError as error:
            refused.append(error)

    publisher = client.publisher(batch_bytes=SMALL_BATCH_BYTES)
    publisher.publish(topic, "first").add_done_callback(again)
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
    publisher = client.publisher(linger=MINUTE_S)
    failing = client.publisher(linger=MINUTE_S)
    together = [publisher.publish(topic, "a"), publisher.publish(topic, "b")]
    refused = [failing.publish(nowhere, "a"), failing.publish(nowhere, "b")]
    for future in (together[0], refused[0]):
        future.add_done_callback(lambda _: sys.exit(3))
    for each in (publisher, failing):
        Thread(target=close, args=(each,), daemon=True).start()

    ids = [id_of(future) for future in together]
    errors = [type(future.exception(ANSWER_WITHIN_S)) for future in refused]

    assert ids == [message.id for message in client.poll(topic)]
    assert errors == [tuff.TopicNotFoundError] * 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_whose_thread_has_ended_fails_all_messages_that_wait(
    client: tuff.Client, topic: tuff.TopicId, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(call: object, **_named: object) -> None:
        waiting.append(publisher.publish(topic, "behind it"))
        sys.exit(3)

    waiting: list[Future[tuff.Published]] = []
    publisher = client.publisher()
    monkeypatch.setattr(client._transport, "send", end)
    under_way = publisher.publish(topic, "on its way")

    told = under_way.exception(ANSWER_WITHIN_S), waiting[0].exception(ANSWER_WITHIN_S)

    assert [getattr(error, "outcome_unknown", None) for error in told] == [True, False]
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(topic, "late")
    with pytest.raises(tuff.ConnectionLostError, match="has ended"):
        publisher.close()


def test_sent_messages_are_published_even_if_the_block_fails(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    def fail(to: tuff.TopicId) -> None:
        with client.publisher(linger=MINUTE_S) as publisher:
            publisher.publish(to, "sent")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(topic)
    with pytest.raises(ZeroDivisionError) as caught:
        fail(tuff.TopicId("client", "nowhere"))

    assert [payload for _, payload in read(client, topic)] == [b"sent"]
    assert "TopicNotFoundError" in caught.value.__notes__[0]


def test_a_closed_publisher_accepts_no_message(client: tuff.Client, topic: tuff.TopicId) -> None:
    publisher = client.publisher()
    publisher.close()
    publisher.close()

    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(topic, "late")


def test_a_publisher_refuses_anything_but_str_or_bytes_at_once(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher() as publisher, pytest.raises(TypeError):
        publisher.publish(topic, 5)


def test_one_publisher_serves_all_topics_and_each_keeps_its_order(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, losses = lossy
    other = tuff.TopicId(topic.namespace, f"{topic.name}-other")
    client.topics.create(other)

    with client.publisher(linger=MINUTE_S) as publisher:
        futures = [(to, publisher.publish(to, "x")) for to in (topic, other) * 200]

    for each in (topic, other):
        told = [id_of(future) for to, future in futures if to == each]
        assert told == [id for id, _ in read(client, each)]
    assert losses.seen.count("publish") == 2


def test_a_topic_that_is_refused_fails_only_its_own_messages(
    lossy: tuple[tuff.Client, Losses], topic: tuff.TopicId
) -> None:
    client, _ = lossy
    nowhere = tuff.TopicId("client", "nowhere")
    publisher = client.publisher(linger=MINUTE_S)
    refused = publisher.publish(nowhere, "a")
    kept = publisher.publish(topic, "b")

    with pytest.raises(tuff.TopicNotFoundError):
        publisher.close()

    assert isinstance(refused.exception(), tuff.TopicNotFoundError)
    assert len(kept.result().ids) == 1


def test_a_publish_of_a_publisher_has_the_parameters_and_the_result_of_one_of_the_client(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher(linger=MINUTE_S) as publisher:
        before = publisher.publish(topic, "before")
        two = publisher.publish(topic, "a", "b", key="k", tags=["t"], headers={"h": "v"}, ttl=60)
        later = publisher.publish(topic, "later", "and this", delay=3_600)

    first, second = client.poll(topic, tags="t")
    assert [first.id, second.id] == list(two.result().ids)
    assert (first.key, first.tags, first.headers) == (b"k", ("t",), (("h", b"v"),))
    waiting = [each.id for each in client.delayed.list(topic)]
    assert list(later.result().delayed_ids) == waiting
    assert len(before.result().ids) == 1


def test_a_publisher_is_refused_what_a_publish_of_the_client_is(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.publisher() as publisher:
        with pytest.raises(tuff.errors.EmptyPublishError):
            publisher.publish(topic)
        with pytest.raises(ValueError, match="either delay or at"):
            publisher.publish(topic, "x", delay=5, at=5)
        with pytest.raises(TypeError, match="transaction"):
            publisher.publish(topic, "x", transaction=5)


NOT_CLOSED = """
import sys, tuff

client = tuff.Client(sys.argv[1], retries=0)
publisher = client.publisher(linger=60)
for number in range(20):
    publisher.publish(sys.argv[2], f"{number}")
"""


def ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own that ran to its end, with all warnings."""
    command = [sys.executable, "-W", "default", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_a_program_that_does_not_close_its_publisher_publishes_at_its_end(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId
) -> None:
    ended = ran(NOT_CLOSED, server.url, str(topic))

    assert [payload for _, payload in read(client, topic)] == [b"%d" % each for each in range(20)]
    assert ended.stderr == ""


def test_what_a_program_could_not_publish_at_its_end_is_counted() -> None:
    ended = ran(NOT_CLOSED, "http://127.0.0.1:9", "shop:orders")

    sentence = "20 messages of a publisher that was not closed may not have been published"
    assert ended.stderr.count(sentence) == 2, "a line of the log, and a warning"
    assert "ResourceWarning" in ended.stderr


def test_what_failed_since_the_client_was_closed_is_counted(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    program = f"{NOT_CLOSED}\nclient.close()\n"

    ended = ran(program, server.url, str(topic))

    assert "20 messages of a publisher that was not closed" in ended.stderr
    assert "ClientClosedError" in ended.stderr


def test_the_end_of_a_program_waits_for_an_answer_within_the_timeout_of_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        program = NOT_CLOSED.replace("retries=0", "timeout=1, retries=100")

        ended = ran(program, url, "shop:orders")

    assert "20 messages of a publisher that was not closed" in ended.stderr


def test_a_publisher_without_a_reference_publishes_its_messages(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    future = client.publisher().publish(topic, "dropped")

    assert [(id_of(future), b"dropped")] == read(client, topic)
