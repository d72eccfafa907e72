"""Several partitions are read in one order: by message id, then by partition."""

import threading
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuff
from messaging.model.partition_of_key import partition_index
from tests.client.test_subscriber import Quiet
from tests.http.process import ServerProcess
from tuff.address import addresses_of
from tuff.blocking.transport import transport_of
from tuff.flows_and_repeated_calls import Call
from tuff.replies import Poll
from tuff.stop_signals import Stop
from tuff.subscriptions import Merge

T = TypeVar("T")

_numbers = count(1)


@pytest.fixture
def orders(client: tuff.Client) -> tuff.TopicId:
    """A topic with three partitions."""
    made = tuff.TopicId("merged", f"orders-{next(_numbers)}")
    client.topics.create(made, partitions=3)
    return made


def taken(messages: Iterator[tuple[int, tuff.Message]], count: int) -> list[tuple[int, bytes]]:
    return [(number, message.payload) for number, message in islice(messages, count)]


class Server:
    """Partitions whose messages have ids that rise over all of them, as on one server."""

    def __init__(self) -> None:
        self.logs: dict[int, list[tuff.Message]] = {0: []}
        self.last = tuff.MessageId(1, 0)
        self.undecided: dict[int, tuff.MessageId] = {}

    def publish(self, number: int) -> None:
        self.last = tuff.MessageId(self.last.publish_timestamp_ms + 1, 0)
        self.logs[number].append(tuff.Message(self.last, b"%d" % number))

    def poll(self, number: int, after: tuff.MessageId | None, limit: int) -> Poll:
        stop = self.undecided.get(number)
        found = [
            each
            for each in self.logs[number]
            if (after is None or each.id > after) and (stop is None or each.id < stop)
        ][:limit]
        is_caught_up = stop is None and len(found) < limit
        next_id = after or tuff.MessageId(0, 0)
        if found:
            next_id = found[-1].id
        elif stop is not None:
            next_id = max(next_id, tuff.MessageId.from_int(stop.to_int() - 1))
        elif is_caught_up:
            next_id = max(next_id, self.last)
        return Poll(
            messages=tuple(found),
            next_id=next_id,
            caught_up=is_caught_up,
            blocked_by=None,
            expired=False,
        )

    def change(self, step: str, at: int) -> None:
        number = at % len(self.logs)
        match step:
            case "publish":
                self.publish(number)
            case "add":
                self.logs[len(self.logs)] = []
            case "undecided":
                self.publish(number)
                self.undecided.setdefault(number, self.last)
            case _:
                self.undecided.pop(number, None)

    def decided(self) -> list[tuple[tuff.MessageId, int]]:
        """All that may be delivered, in order."""
        stop = min(self.undecided.values(), default=tuff.MessageId(1 << 60, 0))
        return sorted(
            (each.id, number) for number, log in self.logs.items() for each in log if each.id < stop
        )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "add", "read", "undecided", "decide"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3))
def test_messages_are_delivered_in_order_and_each_as_soon_as_it_can_be(
    steps: list[tuple[str, int]], limit: int
) -> None:
    server, merge = Server(), Merge()
    merge.set_partitions([0])
    read_to: dict[int, tuff.MessageId] = {}
    delivered: list[tuple[tuff.MessageId, int]] = []

    def read() -> None:
        while True:
            for number in merge.behind():
                poll = server.poll(number, read_to.get(number), limit)
                read_to[number] = poll.next_id
                merge.add(number, poll)
            if not merge.set_partitions(list(server.logs)):
                break
        delivered.extend((message.id, number) for number, message in merge.ready())
        assert delivered == server.decided()[: len(delivered)]

    for step, at in steps:
        if step == "read":
            read()
        else:
            server.change(step, at)
    for _ in range(3 * len(steps) + 1):
        read()
    assert delivered == server.decided()
    assert merge.is_caught_up == (not server.undecided)


def test_partitions_are_read_in_the_order_of_ids(client: tuff.Client, orders: tuff.TopicId) -> None:
    for index in range(12):
        client.publish(orders.partition(index * 7 % 3), f"{index}")

    messages = client.merged(orders, batch=2)

    expected = [(index * 7 % 3, b"%d" % index) for index in range(12)]
    assert taken(messages, 12) == expected
    client.publish(orders.partition(1), "later")
    assert taken(messages, 1) == [(1, b"later")]


async def test_a_task_reads_them_too(server: ServerProcess, orders: tuff.TopicId) -> None:
    async with tuff.AsyncClient(server.url) as client:
        for index in range(4):
            await client.publish(orders.partition(index % 3), f"{index}")
        found = []
        async for number, message in client.merged(orders, partitions=[0, 2]):
            found.append((number, message.payload))
            if len(found) == 3:
                break

    assert found == [(0, b"0"), (2, b"2"), (0, b"3")]


def test_a_reader_resumes_behind_an_id_of_each_partition(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    for index in range(9):
        client.publish(orders.partition(index % 3), f"{index}")
    positions: dict[int, tuff.MessageId] = {}

    for number, message in islice(client.merged(orders, positions), 2):
        positions[number] = message.id
    client.topics.update(orders, partitions=4)
    client.publish(orders.partition(3), "added")

    assert sorted(positions) == [0, 1]
    rest = taken(client.merged(orders, positions), 8)
    assert rest == [*((index % 3, b"%d" % index) for index in range(2, 9)), (3, b"added")]


def test_an_undecided_transaction_holds_back_what_is_behind_it(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    client.publish(orders.partition(0), "before")
    transaction = client.transactions.start()
    client.publish(orders.partition(1), "undecided", transaction=transaction)
    client.publish(orders.partition(2), "behind")
    messages = client.merged(orders)
    assert taken(messages, 1) == [(0, b"before")]

    timer = threading.Timer(0.5, client.transactions.commit, (transaction,))
    timer.start()

    assert taken(messages, 2) == [(1, b"undecided"), (2, b"behind")]
    timer.join()


def test_partitions_that_are_added_and_retired_while_it_reads_are_read(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    client.publish(orders.partition(2), "old")
    messages = client.merged(orders, "earliest")
    assert taken(messages, 1) == [(2, b"old")]

    client.publish(orders.partition(2), "last")
    client.topics.update(orders, partitions=2)
    client.topics.update(orders, partitions=3)
    client.publish(orders.partition(3), "new")

    assert taken(messages, 2) == [(2, b"last"), (3, b"new")]
    with pytest.raises(tuff.errors.PartitionRetiredError):
        client.publish(orders.partition(2), "x")


def test_a_deleted_topic_ends_the_iteration(client: tuff.Client, orders: tuff.TopicId) -> None:
    client.publish(orders.partition(2), "one")
    for messages in (client.merged(orders), client.merged(orders, partitions=[2])):
        assert taken(messages, 1) == [(2, b"one")]
    client.topics.delete(orders)

    for messages in (client.merged(orders), client.merged(orders, partitions=[2])):
        with pytest.raises(tuff.TopicNotFoundError):
            next(messages)


def test_the_client_shows_reads_and_truncates_partitions(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    info = client.topics.get(orders)
    assert (info.partitions, info.retired) == ((0, 1, 2), ())

    published = client.publish(orders, *[tuff.NewMessage(key, key=key) for key in "abcdef"])

    assert published.partitions == (0, 1, 2)
    assert client.publish(orders.partition(0), "x").partitions == (0,)
    assert client.publish(f"{orders}/2", "y").partitions == (2,)

    found = {number: client.poll(orders.partition(number)) for number in range(3)}
    assert {
        message.payload.decode(): number for number, poll in found.items() for message in poll
    } == {key: partition_index(key.encode(), 3) for key in "abcdef"} | {"x": 0, "y": 2}
    with pytest.raises(tuff.errors.PartitionRequiredError) as raised:
        client.poll(orders)
    assert raised.value.members == {"partitions": [0, 1, 2]}
    assert client.topics.truncate(orders, 1 << 60) is None
    assert [len(client.poll(orders.partition(number))) for number in range(3)] == [0, 0, 0]


def test_a_reader_that_does_not_follow_ends_with_the_last_message(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    for index in range(5):
        client.publish(orders.partition(index % 3), f"{index}")

    found = [*client.merged(orders, follow=False, batch=1)]

    expected = [(index % 3, b"%d" % index) for index in range(5)]
    assert [(number, message.payload) for number, message in found] == expected


def test_a_reader_that_does_not_follow_ends_at_a_transaction_that_its_polls_name(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    client.publish(orders.partition(1), "before")
    transaction = client.transactions.start()
    client.publish(orders.partition(0), "undecided", transaction=transaction)
    client.publish(orders.partition(1), "behind")
    polls: list[tuple[int, tuff.Poll]] = []

    found = [*client.merged(orders, follow=False, on_poll=lambda *poll: polls.append(poll))]

    assert [(number, message.payload) for number, message in found] == [(1, b"before")]
    blocked = {number: poll.blocked_by for number, poll in polls}
    assert blocked == {0: transaction.transaction_id, 1: None, 2: None}
    client.transactions.abort(transaction)


def test_a_reader_that_does_not_follow_goes_on_while_a_selection_passes_over_messages() -> None:
    """It ended with the first poll that brought nothing."""
    service = Quiet(unread_count=2)
    client = tuff.Client(transport=service, retries=0)

    assert [*client.merged("shop:rare", partitions=[0], tags="rare", follow=False)] == []

    assert len(service.polls) == 3


def test_a_poll_is_repeated_if_the_server_is_away_when_its_reply_is_looked_at(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    client.publish(orders.partition(0), "once")
    failures = [tuff.ConnectionLostError("nobody answers", outcome_unknown=False)]
    looked_at: list[int] = []

    def look(number: int, poll: tuff.Poll) -> None:
        if failures:
            raise failures.pop()
        looked_at.extend([number] * len(poll))

    found = [message.payload for _, message in client.merged(orders, follow=False, on_poll=look)]

    assert (found, looked_at) == ([b"once"], [0])


def test_a_reader_that_shall_not_wait_raises_when_the_retries_are_over() -> None:
    client = tuff.Client("http://127.0.0.1:9", retries=0)

    with pytest.raises(tuff.ConnectionLostError):
        next(client.merged("shop:orders", on_outage="raise"))


@pytest.mark.parametrize(
    ("start", "says"),
    [([1, 2], r"partitions=\[1, 2\] selects partitions"), (1.5, "a start is a message id")],
)
def test_a_start_of_the_wrong_type_is_refused(
    client: tuff.Client, orders: tuff.TopicId, start: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        next(client.merged(orders, start))


class LateMessage:
    """A transport that notes the path of each request, and publishes a message right before the
    first wait is sent."""

    def __init__(self, url: str, publish: Callable[[], object]) -> None:
        self._inner = transport_of(addresses_of(url, 30.0, 5.0, token=None, ssl_context=None))
        self._publish = publish
        self.url = url
        self.paths: list[str] = []
        self.close = self._inner.close

    def send(self, call: Call[T], *, stop: Stop | None = None) -> T:
        self.paths.append(call.request.path.rpartition("/")[2].partition("?")[0])
        if self.paths[-1] == "wait" and self.paths.count("wait") == 1:
            self._publish()
        return self._inner.send(call, stop=stop)


def test_an_idle_read_waits_for_all_partitions_in_one_request(
    server: ServerProcess, client: tuff.Client, orders: tuff.TopicId
) -> None:
    """It asked each partition five times a second."""
    late = LateMessage(server.url, lambda: client.publish(orders.partition(2), "x"))
    with tuff.Client(server.url, transport=late) as reader:
        number, message = next(reader.merged(orders))

    assert (number, message.payload) == (2, b"x")
    looks = ["poll", "poll", "poll", orders.name]
    assert late.paths[-9:] == [*looks, "wait", *looks]
