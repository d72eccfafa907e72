"""Consumers of a topic: `subscribe` reads on, `subscriber` processes each message exactly once.

    step := poll from the stored position; in one transaction: check that the stored position has
            not moved, process, store the new position

Exactly once is with respect to one participant. If two subscribers have the same name, or one is
killed and started again, only one of them can take a batch: the second finds that the stored
position has moved, or its commit conflicts with that of the first.

    dead letter := {"topic", "id", "timestamp", "payload", "reason", "attempts"}
                 | {"topic", "id", "timestamp", "size", "reason", "attempts"}

A dead letter is JSON in UTF-8. The second form is for a message that does not fit into a dead
letter. `payload` is text, or `{"base64": …}` where it is not UTF-8, or where base64 is shorter: a
control character takes six bytes of JSON.
"""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tuff import calls
from tuff.calls import PollQuestion
from tuff.client_errors import OutcomeUnknownError, WrongStateError
from tuff.commit import Opened, during
from tuff.flows import Backoff, Flow, Hook, Stop, StoppedError, paused, unless
from tuff.participant import AsyncPositions, Positions
from tuff.protocol.errors import (
    RequestTooLargeError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TuffError,
)
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.replies import Poll
from tuff.retries import Retries, is_passing

if TYPE_CHECKING:
    pass  # who blocks should not load asyncio

import json
from base64 import b64encode
from collections.abc import Collection, Mapping

from tuff.calls import LATEST, Call
from tuff.flows import ask
from tuff.protocol.json_forms import payload_to_json
from tuff.protocol.transaction import InvalidReason, Transaction
from tuff.replies import Offsets

log = logging.getLogger(__name__)

C = TypeVar("C")
T = TypeVar("T")
C_contra = TypeVar("C_contra", contravariant=True)

BACKOFF_FIRST_S = 0.5  # seconds; five attempts take up to eight, so a passing trouble can pass
BACKOFF_MOST_S = 5.0  # seconds
POLL_WAIT_MOST_S = 30.0  # seconds; a longer wait is cut into pieces, as a server takes 60 at most


def keep_for(topic: TopicId, positions: Positions | AsyncPositions) -> None:
    """Tell positions that have a `keep_for` which topic they belong to."""
    keep = getattr(positions, "keep_for", None)
    if keep is not None:
        keep(topic)


class _LostPlaceError(Exception):
    """Another of this name has moved the position; the batch is none of ours."""


class _Save(Protocol[C_contra]):
    def __call__(self, id: MessageId, tx: C_contra, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[C]):
    """What a subscriber does: `open_one` makes a context that `load` and `save` take part in."""

    topic: TopicId
    question: PollQuestion
    process: Callable[[Sequence[Message], C], object]
    open_one: Callable[[], Opened[C]]
    load: Callable[[], object]
    save: _Save[C]
    attempts: int
    dead_letters: TopicId | None

    def __post_init__(self) -> None:
        calls.checked_topic(self.topic)
        if self.dead_letters is not None:
            calls.checked_topic(self.dead_letters)
        if self.attempts < 1:
            raise ValueError(f"attempts is a number from 1 on, not {self.attempts}")


class Consumption(Generic[C]):
    """A subscriber's work as flows. Belongs to one thread or task; only `stop` may come from
    others, as it sets one flag."""

    def __init__(
        self, plan: Plan[C], retries: Retries, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._plan = plan
        self._retries = retries
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MOST_S, chance)
        self._dead_letters = plan.dead_letters or TopicId(
            plan.topic.namespace, f"{plan.topic.name}.dlq"
        )
        # Where it begins without a position. Once `latest` was looked up, it stays there: what
        # failed and was not stored would else be skipped.
        self._beginning = plan.question
        self._question: PollQuestion | None = None  # where to read; None: ask the participant
        self._stored: MessageId | None = None
        self._alone_through: MessageId | None = None
        self._failed_count = 0
        self._outage = _Outage(f"the subscriber of {plan.topic}")
        self._is_working = False
        self._stop = Stop()

    def stop(self) -> None:
        """Have `run` return when its batch is through, and end what waits for messages, for the
        server, or for the next attempt. It lasts until a run, or a step, has ended by it."""
        self._stop.set()

    def refuse_coroutines(self) -> None:
        """Raises: TypeError: what it runs is a coroutine function. Without an await
        it does nothing, and each message would end up in the dead letters."""
        for function in (self._plan.process, self._plan.load, self._plan.save):
            if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):
                raise TypeError(
                    f"{function!r} is a coroutine function, which only a subscriber of "
                    "tuff.AsyncClient runs"
                )

    def run(self) -> Flow[None]:
        """Step after step, until `stop`; while the server is away it waits for it.

        Raises: WrongStateError: it is at work already.
        """
        yield from self._alone(self._run())

    def _alone(self, work: Flow[T]) -> Flow[T]:
        if self._is_working:
            raise WrongStateError(
                f"the subscriber of {self._plan.topic} is at work already, in another thread or "
                "task or in its own `process`; create one subscriber for each"
            )
        self._is_working = True
        try:
            return (yield from work)
        finally:
            self._is_working = False

    def _run(self) -> Flow[None]:
        away_count = 0
        if self._stop.is_set:
            # As a signal has it that comes before a thread runs, or between two tries of a program.
            log.warning(
                "the subscriber of %s was stopped before this run began, so it did nothing; the "
                "next run works again",
                self._plan.topic,
            )
        while not self._stop.is_set:
            try:
                yield from self._one_step()
            except TuffError as error:
                # Whether a batch was committed is for the program to hear, and not to be guessed.
                is_over = isinstance(error, OutcomeUnknownError)
                if is_over or not (is_passing(error) or _is_of_others(error)):
                    raise
                if is_passing(error):
                    self._outage.begin(error)
                away_count += 1
                at_least_s = min(error.retry_after_s, BACKOFF_MOST_S)
            else:
                self._outage.end()
                away_count = 0
                continue
            yield from self._pause(away_count, at_least_s=at_least_s)
        self._stop.clear()

    def step(self) -> Flow[int]:
        """One batch, with all its attempts; how many messages are done now, 0 if none came.

        Raises: WrongStateError: it is at work already.
        """
        count = yield from self._alone(self._one_step())
        if not count:
            self._stop.clear()
        return count

    def _one_step(self) -> Flow[int]:
        try:
            return (yield from self._step())
        except StoppedError:
            return 0

    def _step(self) -> Flow[int]:
        while True:
            question = self._question or (yield from self._locate())
            poll = yield from self._wait_for_messages(question)
            if not poll:
                return 0
            count = yield from self._try(poll)
            if count or self._stop.is_set:
                return count

    def _locate(self) -> Flow[PollQuestion]:
        opened = self._plan.open_one()
        stored = yield from during(opened.protocol, self._load(), self._stop)
        if stored != self._stored:
            # What failed until now is done, by another of this name.
            self._alone_through = None
            self._failed_count = 0
        self._stored = stored
        if self._stored is None:
            looking_up = located(self._plan.topic, self._beginning, self._retries.ask)
            found = yield from unless(self._stop, looking_up)
            if found is None:
                raise StoppedError
            question = self._beginning = found
        else:
            question = replace(self._plan.question, start=self._stored, inclusive=False)
        self._question = question
        return question

    def _wait_for_messages(self, question: PollQuestion) -> Flow[Poll | None]:
        left_s = question.wait_s
        limit = 1 if self._alone_through is not None else question.limit
        while True:
            piece_s = min(left_s, POLL_WAIT_MOST_S)
            asked = replace(self._question or question, limit=limit, wait_s=piece_s)
            call = calls.poll(self._plan.topic, asked)
            poll = yield from unless(self._stop, self._retries.ask(call))
            left_s -= piece_s
            if poll is None or poll or left_s <= 0:
                return poll
            self._question = replace(question, start=poll.next_id, inclusive=False)

    def _try(self, poll: Poll) -> Flow[int]:
        try:
            error = yield from self._attempt(poll)
            if error is None:
                return self._passed(poll)
            return (yield from self._failed(poll, error))
        except _LostPlaceError:
            self._question = None
        except TuffError as error:
            if not _is_of_others(error):
                raise
            self._question = None
            yield from self._pause(1)
        return 0

    def _attempt(self, poll: Poll) -> Flow[Exception | None]:
        """Process a batch; answers the error that it can be blamed for, if any."""
        opened = self._plan.open_one()
        try:
            yield from during(opened.protocol, self._process(poll, opened), self._stop)
        except (StoppedError, _LostPlaceError):
            raise
        except TuffError as error:
            if is_passing(error) or _is_of_others(error):
                raise
            return error
        except Exception as error:  # noqa: BLE001 - the program's; it ends up in the dead letter
            return error
        return None

    def _process(self, poll: Poll, opened: Opened[C]) -> Flow[None]:
        yield from self._require_place()
        yield Hook(partial(self._plan.process, poll.messages, opened.context))
        if not opened.protocol.is_in_transaction:
            raise RuntimeError("process ended its transaction, by tx.abort()")
        yield Hook(partial(self._plan.save, poll.next_id, opened.context))

    def _require_place(self) -> Flow[None]:
        if (yield from self._load()) != self._stored:
            raise _LostPlaceError

    def _failed(self, poll: Poll, error: Exception) -> Flow[int]:
        self._failed_count += 1
        if self._alone_through is None and len(poll) > 1:
            # From here to the end of the batch each message goes alone, so that the one that fails
            # is known, and takes no other with it.
            self._alone_through = poll[-1].id
        elif self._failed_count >= self._plan.attempts:
            return (yield from self._bury(poll, error))
        yield from self._pause(self._failed_count)
        return 0

    def _bury(self, poll: Poll, error: Exception) -> Flow[int]:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        place = (self._plan.topic, poll[0])
        try:
            whole = dead_letter(*place, reason=reason, attempts=self._failed_count)
            yield from self._deliver(poll, whole)
        except RequestTooLargeError:
            # It would fail for ever, and what comes after it would never be read.
            short = dead_letter_without_payload(*place, reason=reason, attempts=self._failed_count)
            yield from self._deliver(poll, short)
        return self._passed(poll)

    def _deliver(self, poll: Poll, text: bytes) -> Flow[None]:
        try:
            yield from self._publish_letter(poll, text)
        except TopicNotFoundError:
            with suppress(TopicExistsError):  # another subscriber was faster
                yield from self._retries.ask(calls.create_topic(self._dead_letters, {}))
            yield from self._publish_letter(poll, text)

    def _publish_letter(self, poll: Poll, text: bytes) -> Flow[None]:
        opened = self._plan.open_one()
        replacing = self._replace_by_letter(poll, text, opened)
        yield from during(opened.protocol, replacing, self._stop)

    def _replace_by_letter(self, poll: Poll, text: bytes, opened: Opened[C]) -> Flow[None]:
        yield from self._require_place()
        yield from opened.protocol.publish(self._dead_letters, [text], ttl_s=None)
        yield Hook(partial(self._plan.save, poll.next_id, opened.context))

    def _pause(self, failed_count: int, *, at_least_s: float = 0.0) -> Flow[None]:
        pause = self._backoff.pause(failed_count, at_least_s=at_least_s)
        yield from unless(self._stop, paused(pause))

    def _load(self) -> Flow[MessageId | None]:
        stored: MessageId | None = yield Hook(self._plan.load)
        return stored

    def _passed(self, poll: Poll) -> int:
        self._stored = poll.next_id
        self._question = replace(self._plan.question, start=poll.next_id, inclusive=False)
        if self._alone_through is not None and poll[-1].id >= self._alone_through:
            self._alone_through = None
        # The batch that failed was the first attempt of each message in it.
        self._failed_count = 0 if self._alone_through is None else 1
        return len(poll)


class _Outage:
    """Logs once that a reader waits for the server, and once that it continues."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._is_logged = False

    def begin(self, error: TuffError) -> None:
        if not self._is_logged:
            log.warning("%s waits for the server: %s", self._reader, error.detail)
            self._is_logged = True

    def end(self) -> None:
        if self._is_logged:
            log.info("%s continues: the server answers again", self._reader)
            self._is_logged = False


def _is_of_others(error: TuffError) -> bool:
    """Whether the transaction ended by what says nothing of the messages: others were faster, in
    the position or in the rows, a client invalidated it, or the server crashed (protocol §5.2)."""
    if isinstance(error, TransactionInvalidatedError):
        reasons = {InvalidReason.INVALIDATED, InvalidReason.LOST_IN_CRASH}
        return error.members.get("reason") in reasons
    return isinstance(error, TransactionConflictError)


ROW_PREFIX = b"\x00tuff:position:"  # begins with a zero, so that it sorts before rows of programs


class Table(Protocol):
    """A participant with rows: what `tuff.TransactionalTable` is."""

    name: str

    def get(self, key: bytes, /) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, /) -> None: ...
    def start_tx(self, transaction: Transaction) -> None: ...
    def update_tx(self, transaction: Transaction) -> None: ...
    def tx_changes(self) -> Collection[bytes]: ...
    def commit_tx(self) -> None: ...
    def post_commit(self) -> None: ...
    def rollback_tx(self) -> None: ...


class TablePositions:
    """The position of the subscriber `name` in one topic, as a row of `table`.

    Each topic has a row of its own, so a program that reads several makes one of these for each of
    them, all of the same name if it likes.

    It brings the table into the transaction: `process` reads and writes the table's rows without
    adding it, and they commit together with the position.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = f"position of {name} in {table.name}"
        self._table = table
        self._name = name
        self._topic: TopicId | None = None
        self.start_tx = table.start_tx
        self.update_tx = table.update_tx
        self.tx_changes = table.tx_changes
        self.commit_tx = table.commit_tx
        self.post_commit = table.post_commit
        self.rollback_tx = table.rollback_tx
        self.leave_tx = getattr(table, "leave_tx", None)

    def keep_for(self, topic: TopicId) -> None:
        """Keep the position in this topic; `client.subscriber` says it.

        Raises: ValueError: it is kept for another one already.
        """
        if self._topic not in (None, topic):
            raise ValueError(
                f"{self.name} is kept for {self._topic}, and a position in one topic is none in "
                f"{topic}; make a tuff.TablePositions for each"
            )
        self._topic = topic

    def load(self) -> MessageId | None:
        """The position that the current transaction sees; None: there is none yet."""
        stored = self._table.get(self._key())
        return None if stored is None else MessageId.from_bytes(stored)

    def save(self, id: MessageId, tx: object) -> None:
        """Keep the position, as a row that the current transaction writes."""
        self._table.put(self._key(), id.to_bytes())

    def _key(self) -> bytes:
        if self._topic is None:
            raise WrongStateError(f"{self.name} is for no topic yet; call `keep_for(topic)` first")
        # No name of a topic has a colon, so the first two parts end where they should.
        return ROW_PREFIX + f"{self._topic}:{self._name}".encode()


AWAY_FIRST_S = 0.1  # seconds; a server that restarts is back within one or two
AWAY_MOST_S = 5.0  # seconds; what a reader adds to the time that a server is away


def located(
    topic: TopicId, question: PollQuestion, ask: Callable[[Call[Offsets]], Flow[Offsets]]
) -> Flow[PollQuestion]:
    """The question with a start that stays where it is: `latest` becomes the place that this reader
    can read up to now. What was published before and is decided later still comes."""
    if question.start != LATEST:
        return question
    offsets = yield from ask(calls.offsets(topic, isolation=question.isolation))
    return replace(question, start=offsets.end, inclusive=offsets.end is None)


class Subscription:
    """Reads on from a position, over long polls and restarts of the server (protocol §3.4). Belongs
    to one thread or task.

    The position after each reply is its `Tuff-Next`: the next reply begins with exactly what that
    one left out, skipped or held back, and a reply that is lost is asked for again. So no
    message is skipped, and none comes twice.
    """

    def __init__(
        self,
        topic: TopicId,
        question: PollQuestion,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._topic = topic
        self._question = question
        self._backoff = Backoff(AWAY_FIRST_S, AWAY_MOST_S, chance)
        self._outage = _Outage(f"the subscription of {topic}")

    def poll(self) -> Flow[Poll]:
        """The next messages, or none when the wait was over; however long the server is away."""
        failed_count = 0
        while True:
            try:
                self._question = yield from located(self._topic, self._question, ask)
                poll = yield from ask(calls.poll(self._topic, self._question))
            except TuffError as error:
                if not is_passing(error):
                    raise
                self._outage.begin(error)
                failed_count += 1
                at_least_s = min(error.retry_after_s, AWAY_MOST_S)
            else:
                self._outage.end()
                self._question = replace(self._question, start=poll.next_id, inclusive=False)
                return poll
            yield self._backoff.pause(failed_count, at_least_s=at_least_s)


REASON_LENGTH_MAX = 4_000  # characters; a letter is about the message, not about a stack


def dead_letter(topic: TopicId, message: Message, *, reason: str, attempts: int) -> bytes:
    """A letter that holds the message."""
    return _dead_letter(topic, message, {"payload": _form(message.payload)}, reason, attempts)


def dead_letter_without_payload(
    topic: TopicId, message: Message, *, reason: str, attempts: int
) -> bytes:
    """A letter that says how many bytes the message has; it can be read from its topic by its id,
    until its time to live is over."""
    return _dead_letter(topic, message, {"size": len(message.payload)}, reason, attempts)


def _dead_letter(
    topic: TopicId, message: Message, content: Mapping[str, object], reason: str, attempts: int
) -> bytes:
    # Half a surrogate pair, as a file name in a reason may have, has no UTF-8.
    shown = reason[:REASON_LENGTH_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
    return _json(
        {
            "topic": str(topic),
            "id": message.id.hex(),
            "timestamp": message.timestamp,
            **content,
            "reason": shown,
            "attempts": attempts,
        }
    )


def _form(payload: bytes) -> object:
    plain = payload_to_json(payload)
    base64 = {"base64": b64encode(payload).decode("ascii")}
    return plain if len(_json(plain)) <= len(_json(base64)) else base64


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")
