"""`subscribe`: reads a topic continuously, several partitions in one order: by message id, then by
partition.

A message is delivered once no partition can deliver an earlier one any more. Each partition that
has nothing to deliver was then read beyond the message's id, and the list of partitions was read
after the message: a partition that was added later has later ids only.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heapreplace

from tuff import read_calls, topic_calls
from tuff.flows_and_repeated_calls import Flow, ask
from tuff.protocol.errors import PartitionRequiredError, TopicNotFoundError
from tuff.protocol.ids import FIRST_ID, LAST_ID, MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.read_calls import LATEST, PollQuestion, Start, with_fixed_start
from tuff.replies import Poll
from tuff.requests_and_responses import members, number_of
from tuff.server_outages import Outages

WAIT_S = 20.0  # seconds of one wait for news

Starts = Start | Mapping[int, MessageId | str] | None  # of all partitions, or behind an id of each
OnPoll = Callable[[int, Poll], object]  # gets each reply of a partition, before its messages


@dataclass(slots=True)
class _Partition:
    """What was read of a partition and is not delivered yet. `read_to`: everything up to this id
    was read; None before the first poll."""

    waiting: deque[Message] = field(default_factory=deque)
    read_to: MessageId | None = None
    is_caught_up: bool = False


class Merge:
    """Brings the messages of several partitions into one order. Belongs to one thread or task.

    Repeat: poll each partition of `behind()` and pass the reply to `add`; then read the list of
    partitions, if it can change, pass it to `set_partitions`, and go on with `behind()` if it had
    new ones; then take what `ready()` delivers.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def set_partitions(self, numbers: Collection[int]) -> bool:
        """Read these partitions from now on; returns whether one of them is new. What was read of
        others is delivered, and no more."""
        added = [number for number in numbers if number not in self._partitions]
        for number in added:
            self._partitions[number] = _Partition()
        for number in [each for each in self._partitions if each not in numbers]:
            if not self._partitions[number].waiting:
                del self._partitions[number]
        return bool(added)

    def behind(self) -> list[int]:
        """The partitions that have to be polled before anything can be delivered."""
        heads = [each.waiting[0].id for each in self._partitions.values() if each.waiting]
        first = min(heads, default=None)
        return [
            number
            for number, each in sorted(self._partitions.items())
            if not each.waiting and (first is None or each.read_to is None or each.read_to < first)
        ]

    def read_to(self) -> dict[int, MessageId]:
        """How far each partition of `behind()` was read that was polled before."""
        partitions = ((number, self._partitions[number].read_to) for number in self.behind())
        return {number: id for number, id in partitions if id is not None}

    def add(self, number: int, poll: Poll) -> None:
        """What a poll of a partition returned."""
        partition = self._partitions[number]
        partition.waiting.extend(poll)
        partition.read_to = poll.next_id
        partition.is_caught_up = poll.caught_up

    def ready(self) -> Iterator[tuple[int, Message]]:
        """The next messages with their partitions, in order."""
        partitions = self._partitions.values()
        read_to = [each.read_to or FIRST_ID for each in partitions if not each.waiting]
        limit = min(read_to, default=LAST_ID)
        heads = [
            (each.waiting[0].id, number)
            for number, each in self._partitions.items()
            if each.waiting
        ]
        heapify(heads)
        while heads and heads[0][0] <= limit:
            number = heads[0][1]
            partition = self._partitions[number]
            yield number, partition.waiting.popleft()
            if partition.waiting:
                heapreplace(heads, (partition.waiting[0].id, number))
            else:
                heappop(heads)
                limit = min(limit, partition.read_to or FIRST_ID)

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing was left in any partition when it was polled, and all is delivered."""
        return all(each.is_caught_up and not each.waiting for each in self._partitions.values())


class Subscription:
    """Reads continuously from a position, by long polls and over restarts of the server (protocol
    §3.4). Belongs to one thread or task.

    The position after each reply is its `Tuff-Next`, and a poll whose reply is lost is repeated. So
    no message is skipped, and none comes twice. `on_poll` gets each reply first. If it raises an
    error of a server that is away, the poll is repeated.
    """

    def __init__(
        self,
        topic: TopicId,
        question: PollQuestion,
        *,
        outages: Outages | None = None,
        on_poll: Callable[[Poll], object] | None = None,
    ) -> None:
        self._topic = topic
        self.question = question  # the next poll
        self._outages = outages or Outages(f"the subscription of {topic}")
        self._on_poll = on_poll

    def poll(self) -> Flow[Poll]:
        """The next messages, or none when the wait was over; however long the server is away."""
        poll = yield from self._outages.outlasting(self._poll)
        self.question = replace(self.question, start=poll.next_id, inclusive=False)
        return poll

    def _poll(self) -> Flow[Poll]:
        self.question = yield from with_fixed_start(self._topic, self.question, ask)
        poll = yield from ask(read_calls.poll(self._topic, self.question))
        if self._on_poll is not None:
            self._on_poll(poll)
        return poll


class MergedSubscription:
    """Reads partitions continuously in one order, over restarts of the server. Belongs to one
    thread or task. `numbers` None: all partitions, with those that are added later. `count_max`:
    how many attempts in a row may fail while the server is away; None: any number."""

    def __init__(
        self,
        topic: TopicId,
        numbers: Collection[int] | None,
        start: Starts,
        question: PollQuestion,
        *,
        count_max: int | None = None,
        on_poll: OnPoll | None = None,
    ) -> None:
        if isinstance(start, Collection) and not isinstance(start, str | Mapping | MessageId):
            raise TypeError(
                f"start is no list: partitions={start!r:.100} selects partitions, and a mapping "
                "gives each of them its start"
            )
        for number in (*members(numbers or (), "partitions"), *_numbers_of(start)):
            number_of(number, "a partition", at_least=0)
        self._topic = topic.base
        self._start = start
        self._question = question
        self._outages = Outages(f"the subscription of {topic}", count_max=count_max)
        self._on_poll = on_poll
        self._merge = Merge()
        self._subscriptions: dict[int, Subscription] = {}
        self._follows = numbers is None
        self._has_begun = False  # whether the first partitions were read
        self._merge.set_partitions(numbers or ())

    def poll(self) -> Flow[list[tuple[int, Message]]]:
        """The next messages with their partitions; waits until there are some."""
        while True:
            yield from self._read()
            if found := list(self._merge.ready()):
                return found
            yield from self._wait()

    def rest(self) -> Flow[list[tuple[int, Message]]]:
        """The next messages with their partitions; none when all are read that can be read now."""
        while True:
            before = self._places()
            yield from self._read()
            found = list(self._merge.ready())
            # A selection by tags may pass over many messages: then a poll brings none of them.
            if found or self._merge.is_caught_up or self._places() == before:
                return found

    def _places(self) -> dict[int, object]:
        return {number: each.question.start for number, each in self._subscriptions.items()}

    def _wait(self) -> Flow[None]:
        """Wait until a partition that is behind has messages, or one was added."""
        after = self._merge.read_to()
        question = replace(self._question, wait_s=WAIT_S)
        call = read_calls.wait_for_partitions(self._topic, after, question, added=self._follows)
        yield from self._outages.outlasting(lambda: ask(call))

    def _read(self) -> Flow[None]:
        """Poll the partitions that are behind, and those that were added since."""
        while True:
            missing = yield from self._poll_behind()
            if not self._follows:
                return
            info = yield from self._outages.outlasting(
                lambda: ask(topic_calls.get_topic(self._topic))
            )
            numbers = {*info.partitions, *info.retired}
            for number in missing.keys() & numbers:
                raise missing[number]
            self._has_begun = self._has_begun or bool(self._subscriptions)
            if not self._merge.set_partitions(numbers) and not missing:
                return

    def _poll_behind(self) -> Flow[dict[int, TopicNotFoundError]]:
        """Poll them; returns the errors of those that are not there any more. A retired partition
        is deleted when its messages are gone."""
        missing: dict[int, TopicNotFoundError] = {}
        for number in self._merge.behind():
            try:
                poll = yield from self._subscription(number).poll()
            except TopicNotFoundError as error:
                if not self._follows:
                    raise
                missing[number] = error
            else:
                self._merge.add(number, poll)
        return missing

    def _subscription(self, number: int) -> Subscription:
        found = self._subscriptions.get(number)
        if found is None:
            found = self._subscriptions[number] = Subscription(
                self._topic.partition(number),
                self._first_question(number),
                outages=self._outages,
                on_poll=None if self._on_poll is None else partial(self._on_poll, number),
            )
        return found

    def _first_question(self, number: int) -> PollQuestion:
        """A partition that a mapping does not name, or that was added behind `latest`, is read from
        its beginning."""
        start = self._start
        if isinstance(start, Mapping):
            inclusive = number not in start
            return replace(self._question, start=start.get(number), inclusive=inclusive)
        is_new = self._has_begun and start == LATEST
        return replace(self._question, start=None if is_new else start)


class TopicSubscription:
    """Reads a topic continuously: its only partition by long polls; and once there are several, all
    of them in one order, with those that are added later. Belongs to one thread or task."""

    def __init__(self, topic: TopicId, question: PollQuestion) -> None:
        self._topic = topic
        self._single = Subscription(topic, question)
        self._merged: MergedSubscription | None = None

    def poll(self) -> Flow[list[Message]]:
        """The next messages, or none when the wait was over."""
        if self._merged is None:
            try:
                return list((yield from self._single.poll()))
            except PartitionRequiredError:
                # What was read until now was of partition 0, and ids of the others are later.
                self._merged = merged_from(self._topic, self._single.question)
        found = yield from self._merged.poll()
        return [message for _, message in found]


def _numbers_of(start: Starts) -> Collection[int]:
    return start.keys() if isinstance(start, Mapping) else ()


def merged_from(topic: TopicId, question: PollQuestion) -> MergedSubscription:
    """All partitions of a topic, from the start of the question on."""
    return MergedSubscription(topic, None, question.start, replace(question, wait_s=0.0))
