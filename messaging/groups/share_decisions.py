"""The state of a share group, and its decisions. Pure (protocol §3.12; decision 0043, section 4).

Durable is how far the topic was read, which of the messages up to there are not done, and of these
how often they were begun and until when they wait for a retry. Leases are in memory. The *window*
has the messages that were read and are not done, each in one of these phases:

    AVAILABLE  can be given out; with order by key, once it is the oldest of its key
    LEASED     a consumer has it, until `until_ms`
    WAITING    was released with a delay, until `until_ms`

In each phase a transaction in progress may have acknowledged the message. Until that is decided, it
is not given out.

What is done takes no room in the window, so a message that waits does not stop the others. With
order by key, the window has at most `KEY_COUNT_MAX` messages of a key. The messages of the key
behind them are read again when these are done, so a key that waits does not stop the others either.

**Attempts.** An attempt is a beginning, not a lease. The first message of a lease is begun; of the
others the consumer says it, with the renewal of their leases, or with their release. A consumer
whose leases end may have died of one of its messages. Which one is only known of messages that are
leased by themselves, so each of them is given out alone from then on. If a consumer dies of it
then, the end of the lease with others before counts as an attempt of it, too.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TypeVar

from messaging.groups.group_log_records import (
    AcceptedRecord,
    DamagedRecordOfGroupError,
    ReadRecord,
    RejectedRecord,
    ShareRecord,
    TriedRecord,
    Tries,
    WindowRecord,
)
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.ids import MessageId
from tuff.protocol.leases import AttemptReport, LeaseAction, LeaseOutcome

IDS_COUNT_MAX = 1_000  # in one record; a larger summary is several records of one batch
LEASE_MS_MIN = 100  # ms; a round trip and some work
LEASE_MS_MAX = 12 * 3600 * 1000  # ms
LEASE_MS_DEFAULT = 30_000  # ms
KEY_COUNT_MAX = 100  # messages of a key in the window; one read of the topic finds them again
STALE_COUNT = 1_000  # entries of a heap that may be out of date; then it is made again
REMEMBERED_COUNT_MAX = 10_000  # acknowledgements that are answered alike if they are repeated
GONE_COUNT_MAX = 10_000  # messages that consumers may have, and that the topic has no more

T = TypeVar("T")

_TOKEN = re.compile("([0-9a-f]{1,40})-([0-9a-f]{1,16})")


class ProcessingOrder(StrEnum):
    """In which order a share group processes messages: none, or those of a key one by one."""

    NONE = "none"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProperties:
    """What a share group was created with. `start` is what the request named; the group begins
    behind `after`, the id that this meant then. `tags`: which messages it has, None for all."""

    start: str
    after: MessageId
    order: ProcessingOrder = ProcessingOrder.NONE
    tags: str | None = None
    lease_ms: int = LEASE_MS_DEFAULT

    def is_same(self, other: ShareProperties) -> bool:
        """Whether both are of the same request."""
        return replace(self, after=other.after) == other

    def to_texts(self) -> dict[str, str]:
        """As properties of the log's topic."""
        return {
            "start": self.start,
            "after": self.after.hex(),
            "order": self.order,
            **({} if self.tags is None else {"tags": self.tags}),
            "lease_ms": str(self.lease_ms),
        }

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> ShareProperties:
        """Raises: DamagedRecordOfGroupError."""
        try:
            return cls(
                start=texts["start"],
                after=MessageId.from_hex(texts["after"]),
                order=ProcessingOrder(texts["order"]),
                tags=texts.get("tags"),
                lease_ms=int(texts["lease_ms"]),
            )
        except (KeyError, ValueError, TuffError) as error:
            raise DamagedRecordOfGroupError(f"no share group has these: {error}") from None


class Phase(Enum):
    AVAILABLE = "available"
    LEASED = "leased"
    WAITING = "waiting"


_SUCCESS = {
    LeaseAction.ACCEPT: LeaseOutcome.ACCEPTED,
    LeaseAction.RELEASE: LeaseOutcome.RELEASED,
    LeaseAction.REJECT: LeaseOutcome.REJECTED,
    LeaseAction.RENEW: LeaseOutcome.RENEWED,
}


@dataclass(frozen=True, slots=True)
class Token:
    """Names one delivery of a message. `epoch` is that of the group in memory, which is higher
    after each load; `number` counts the deliveries since."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch:x}-{self.number:x}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Raises: BadRequestError."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise BadRequestError(f"{text[:80]!r} is not the token of a delivery")
        return cls(int(found[1], 16), int(found[2], 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One message of a request. `ms`: the delay of a release, 0 if it is None; or the length of a
    renewed lease, that of the group if it is None. `attempt`: None where the consumer does not say
    it; then a released message was begun."""

    id: bytes
    token: Token
    action: LeaseAction
    ms: int | None = None
    attempt: AttemptReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A message that was given out: its token, the number of this attempt, how many of those before
    were lost with their consumers, and when the lease ends, in ms since the epoch."""

    id: bytes
    token: Token
    attempts: int
    until_ms: int
    lost: int = 0


@dataclass(slots=True)
class _Message:
    key: bytes | None
    position: int  # among the messages that were read since the load, and those not done before it
    phase: Phase = Phase.AVAILABLE
    delivery: int = 0  # the number of the last one; 0 if there was none since the load
    until_ms: int = 0
    attempts: int = 0  # that are over; one whose lease ended is when the message is given out again
    lost: int = 0  # of these, how many never ended: the consumer vanished
    is_begun: bool = False  # an attempt that is not over
    is_alone: bool = False  # it is given out by itself: its consumer may have died of it
    is_suspect: bool = False  # and no attempt was counted for that


@dataclass(slots=True)
class _Key:
    """The messages of a key that are not done: `ids` are in the window, the oldest first. `behind`:
    there are further ones behind this id; None without any. `position` is that of the first message
    behind it."""

    ids: deque[bytes]
    behind: bytes | None = None
    further_count: int = 0
    position: int = 0


class ShareState:
    """One share group in memory. `apply` and `end_transaction` change what is durable."""

    def __init__(self, after: bytes, *, order: ProcessingOrder, epoch: int) -> None:
        """A new group, which begins behind the id `after`."""
        self.read_to = after  # all up to here are in the window, further ones of a key, or done
        self.epoch = epoch
        self._is_by_key = order is ProcessingOrder.KEY
        self._read_count = 0  # the position of the next message
        self._unwritten: set[bytes] = set()  # messages whose attempts changed since the last record
        self._gone: dict[bytes, _Message] = {}  # left the topic while a consumer may have had them
        self._lost_ids: list[bytes] = []
        self._undecided: dict[bytes, int] = {}  # the pointer that acknowledges a message
        self._of_pointer: dict[int, list[bytes]] = {}  # the messages that it acknowledges
        self._deliveries_count = 0
        self._acknowledged: dict[bytes, tuple[Token, LeaseOutcome]] = {}
        self._clear()

    def _clear(self) -> None:
        """Without messages, as before the first record and the summary."""
        self._messages: dict[bytes, _Message] = {}
        # Of messages behind those that were read since the load: which are done, and the tries of
        # others.
        self.ahead: set[bytes] = set()
        self._tries: dict[bytes, Tries] = {}
        self._tried: list[bytes] = []  # a heap of their ids
        self._keys: dict[bytes, _Key] = {}
        self._further: set[bytes] = set()  # the keys with further messages
        # What is in a heap may be out of date, and is checked when it comes up.
        self._window: list[bytes] = []
        self._available: list[bytes] = []
        self._times: list[tuple[int, bytes]] = []

    # What is durable.

    def apply(self, record: ShareRecord) -> None:
        """Change the state by a record of the log."""
        if isinstance(record, ReadRecord):
            self.read_to = max(self.read_to, record.read_to)
            self._clear()  # the records behind it have all messages up to here that are not done
        elif isinstance(record, WindowRecord):
            self._restore_window(record)
        elif isinstance(record, TriedRecord):
            for tries in record.messages:
                self._apply_tries(tries)
        elif record.pointer is not None:
            self._undecided |= dict.fromkeys(record.ids, record.pointer)
            self._of_pointer.setdefault(record.pointer, []).extend(record.ids)
        else:
            for each in record.ids:
                self._finish(each)

    def end_transaction(self, pointer: int, *, is_committed: bool) -> None:
        """The transaction of undecided acknowledgements has ended."""
        for each in self._of_pointer.pop(pointer, ()):
            if self._undecided.get(each) != pointer:
                continue  # while the log is loaded, a later record may have acknowledged it
            del self._undecided[each]
            if is_committed:
                self._finish(each)
            else:
                self._note_available(each)  # if its lease is over, too

    def summary(self) -> list[ShareRecord]:
        """Records that make the durable part of an equal state, without undecided messages: their
        own records are still needed."""
        tried = [
            _tries_of(each, message)
            for each, message in self._messages.items()
            if message.attempts or message.is_begun or message.phase is Phase.WAITING
        ]
        of_no_key = sorted(
            each
            for each, message in self._messages.items()
            if not self._is_by_key or message.key is None
        )
        return [
            ReadRecord(read_to=self.read_to),
            *(WindowRecord(ids=tuple(ids)) for ids in _parts(of_no_key)),
            *(
                WindowRecord(
                    ids=tuple(each for each in of_key.ids if each in self._messages),
                    key=key,
                    behind=of_key.behind,
                    further=of_key.further_count,
                )
                for key, of_key in self._keys.items()
            ),
            *(AcceptedRecord(ids=tuple(ids)) for ids in _parts(sorted(self.ahead))),
            *_tried_records([*tried, *self._tries.values()]),
        ]

    def _restore_window(self, record: WindowRecord) -> None:
        for each in record.ids:
            self._put(each, record.key, position=self._read_count)
            self._read_count += 1
        if record.key is not None and record.behind is not None:
            of_key = self._keys.setdefault(record.key, _Key(deque()))
            of_key.behind, of_key.further_count = record.behind, record.further
            of_key.position = self._read_count
            self._read_count += record.further
            self._further.add(record.key)

    def _apply_tries(self, tries: Tries) -> None:
        message = self._messages.get(tries.id)
        if message is None:
            if tries.id > self._seen_to and tries.id not in self.ahead:
                self._tries[tries.id] = tries
                heapq.heappush(self._tried, tries.id)
        elif not message.delivery:  # else the state has it already
            self._restore_tries(tries, message)

    def take_unwritten(self) -> list[TriedRecord]:
        """Records of the attempts that changed since the last call, to be written with others."""
        changed, self._unwritten = self._unwritten & self._messages.keys(), set()
        return _tried_records([_tries_of(each, self._messages[each]) for each in sorted(changed)])

    def take_lost(self) -> list[bytes]:
        """Messages that were begun, are not done, and left the topic since the last call."""
        found, self._lost_ids = self._lost_ids, []
        return found

    @property
    def low(self) -> bytes:
        """All messages up to this id are done."""
        first = [_id_before(self._window[0])] if self._window else []
        return min([self.read_to, *first, *self._behind(self._starved())])

    # The window.

    @property
    def window_count(self) -> int:
        """Messages in the window."""
        return len(self._messages)

    def __contains__(self, message_id: bytes) -> bool:
        """Whether a message is in the window."""
        return message_id in self._messages

    def add(self, messages: Iterable[tuple[bytes, bytes | None]], *, read_to: bytes) -> None:
        """Messages behind those that were read with their keys, in order: all up to the id
        `read_to`. Some of a key may count as further ones."""
        for message_id, key in messages:
            if message_id not in self.ahead:
                of_key = None if key is None else self._keys.get(key)
                if key is None or of_key is None or not self._is_further(of_key):
                    self._put(message_id, key, position=self._read_count)
                else:
                    if of_key.behind is None:
                        of_key.behind = _id_before(message_id)
                        of_key.position = self._read_count
                        self._further.add(key)
                    of_key.further_count += 1
            self._read_count += 1
        self._pass_to(read_to)

    @property
    def further_from(self) -> bytes | None:
        """Behind this id are messages of keys that have none in the window, to be read again and
        passed to `add_further`; None if there are none."""
        return min(self._behind(self._starved()), default=None)

    def add_further(
        self, messages: Sequence[tuple[bytes, bytes | None]], *, read_to: bytes | None
    ) -> None:
        """All messages behind `further_from` up to the id `read_to`, with their keys, in order;
        None: up to the newest one that was read."""
        starved = self._starved()
        position = min((self._keys[each].position for each in starved), default=0)
        for index, (message_id, key) in enumerate(messages):
            if key is None or key not in starved:
                continue
            of_key = self._keys[key]
            assert of_key.behind is not None
            if message_id <= of_key.behind or len(of_key.ids) >= KEY_COUNT_MAX:
                continue
            of_key.behind, of_key.position = message_id, position + index + 1
            of_key.further_count = max(0, of_key.further_count - 1)
            if message_id in self.ahead:
                self.ahead.discard(message_id)
            else:
                self._put(message_id, key, position=position + index)
        for key in starved:
            self._end_further(key, read_to, position + len(messages))
        self._pass_to(self.read_to)

    def _end_further(self, key: bytes, read_to: bytes | None, position: int) -> None:
        """What is left of a key that was looked for up to the id `read_to`."""
        of_key = self._keys[key]
        assert of_key.behind is not None
        if len(of_key.ids) < KEY_COUNT_MAX:
            if read_to is None or read_to >= self.read_to:
                of_key.behind, of_key.further_count = None, 0
                self._further.discard(key)
            elif read_to > of_key.behind:
                of_key.behind, of_key.position = read_to, position
        if not of_key.ids and of_key.behind is None:
            del self._keys[key]

    def _is_further(self, of_key: _Key) -> bool:
        return of_key.behind is not None or len(of_key.ids) >= KEY_COUNT_MAX

    def _starved(self) -> set[bytes]:
        """The keys with further messages that have none in the window."""
        return {each for each in self._further if not self._keys[each].ids}

    def _behind(self, keys: Iterable[bytes]) -> list[bytes]:
        found = (self._keys[each].behind for each in keys)
        return [each for each in found if each is not None]

    @property
    def _seen_to(self) -> bytes:
        """All messages up to here are in the window or done."""
        return min([self.read_to, *self._behind(self._further)])

    def _put(self, message_id: bytes, key: bytes | None, *, position: int) -> None:
        """Into the window."""
        message = self._messages[message_id] = _Message(key, position)
        heapq.heappush(self._window, message_id)
        if self._is_by_key and key is not None:
            self._keys.setdefault(key, _Key(deque())).ids.append(message_id)
        if (tries := self._tries.pop(message_id, None)) is not None:
            self._restore_tries(tries, message)
        self._note_available(message_id)

    def unread_in(self, after: bytes, through: bytes) -> int:
        """How many messages between two ids, of those that were read from the topic, are not done,
        and no consumer has; of a key with many messages, some may not be counted."""
        if self._window and self._window[0] > through:
            return 0  # the usual case
        waiting = sum(
            after < each <= through
            and message.phase is not Phase.LEASED
            and each not in self._undecided
            for each, message in self._messages.items()
        )
        if through < self.read_to:
            return waiting
        return waiting + sum(self._keys[each].further_count for each in self._further)

    def forget_before(self, first: bytes) -> None:
        """Messages before this id have expired, or were truncated."""
        while self._window and self._window[0] < first:
            self._forget(self._window[0])
            self._trim()
        self._pass_to(_id_before(first))

    def forget(self, ids: Iterable[bytes]) -> None:
        """These messages are not in the topic any more."""
        for each in ids:
            self._forget(each)
        self._trim()

    def _pass_to(self, read_to: bytes) -> None:
        """All up to here was read: messages up to there that are not in the window are gone."""
        self.read_to = max(self.read_to, read_to)
        if not (self.ahead or self._tried):
            return
        last = self._seen_to
        self.ahead = {each for each in self.ahead if each > last}
        while self._tried and self._tried[0] <= last:
            message_id = heapq.heappop(self._tried)
            if self._tries.pop(message_id, None) is not None:
                self._lost_ids.append(message_id)

    def _forget(self, message_id: bytes) -> None:
        message = self._remove(message_id)
        if message is None:
            return
        if message.attempts or message.is_begun:
            self._lost_ids.append(message_id)
        if message.delivery:
            # No other consumer gets it, so what its consumer has done, or is doing, counts.
            self._gone[message_id] = message
            while len(self._gone) > GONE_COUNT_MAX:
                del self._gone[next(iter(self._gone))]

    # Leases.

    def next_ms(self) -> int | None:
        """When a lease or a delay ends, the next; None without any."""
        while self._times:
            if self._is_time_of(*self._times[0]):
                return self._times[0][0]
            heapq.heappop(self._times)
        return None

    def end_leases(self, *, now_ms: int) -> None:
        """Make messages available whose lease or delay is over."""
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            _, message_id = heapq.heappop(self._times)
            message = self._messages[message_id]
            if message.phase is Phase.LEASED:
                message.is_alone = True
                message.is_suspect |= not message.is_begun
                if message.is_begun:
                    self._unwritten.add(message_id)
            self._make_available(message_id)

    def candidates(self, count: int) -> list[bytes]:
        """Up to so many messages that can be given out, the oldest first. Then call `lease`,
        `put_back` or `forget` for each of them. One that is given out alone is the only one."""
        found: list[bytes] = []
        while len(found) < count and (message_id := self._next_available()) is not None:
            is_alone = self._messages[message_id].is_alone
            if found and is_alone:
                break
            heapq.heappop(self._available)
            if message_id not in found[-1:]:  # equal entries follow each other
                found.append(message_id)
            if is_alone:
                break
        return found

    def is_complete(self, taken: Sequence[bytes]) -> bool:
        """Whether the next candidate can't be given out together with these."""
        if not taken:
            return False
        neighbours = (taken[-1], self._next_available())
        return any(each is not None and self._messages[each].is_alone for each in neighbours)

    def _next_available(self) -> bytes | None:
        while self._available:
            if self._can_be_given_out(self._available[0]):
                return self._available[0]
            heapq.heappop(self._available)
        return None

    def put_back(self, message_id: bytes) -> None:
        """A candidate is not given out now."""
        self._note_available(message_id)

    def lease(self, message_id: bytes, *, until_ms: int, is_begun: bool) -> Lease:
        """Give a candidate out; `is_begun`: its consumer begins it at once."""
        message = self._messages[message_id]
        if message.is_begun:  # the consumer that had begun it did not say how that ended
            message.attempts += 1 + message.is_suspect
            message.lost += 1 + message.is_suspect
            message.is_suspect = False
        if message.is_begun or is_begun:
            self._unwritten.add(message_id)
        message.is_begun = is_begun
        self._deliveries_count += 1
        message.delivery = self._deliveries_count
        self._set_until(message_id, Phase.LEASED, until_ms)
        return Lease(
            id=message_id,
            token=Token(self.epoch, message.delivery),
            attempts=message.attempts + 1,
            until_ms=until_ms,
            lost=message.lost,
        )

    def acknowledge(
        self,
        request: Sequence[Acknowledgement],
        *,
        now_ms: int,
        lease_ms: int,
        pointer: int | None = None,
        expiring: Collection[bytes] = (),
    ) -> tuple[list[LeaseOutcome], list[ShareRecord]]:
        """Renew and release at once, and return an outcome for each message and the records to
        write: acceptances and rejections count once these are applied, and then `remember`.
        `expiring`: messages that will have expired when they would be given out again.

        An acknowledgement counts unless another delivery has, or later had, the message.
        """
        outcomes: list[LeaseOutcome] = []
        accepted: list[bytes] = []
        rejected: list[bytes] = []
        tried: list[Tries] = []
        for each in request:
            outcome, is_new = self._decide(each, pointer, expiring)
            outcomes.append(outcome)
            if not is_new:
                continue
            if outcome in (LeaseOutcome.ACCEPTED, LeaseOutcome.REJECTED):
                (accepted if outcome is LeaseOutcome.ACCEPTED else rejected).append(each.id)
                self._unwritten.discard(each.id)
            elif each.id not in self._gone:
                if outcome is LeaseOutcome.RENEWED:
                    self._renew(each, until_ms=now_ms + (each.ms or lease_ms))
                else:
                    tried += self._release(each, now_ms=now_ms)
        return outcomes, [
            *([AcceptedRecord(ids=tuple(accepted), pointer=pointer)] if accepted else ()),
            *([RejectedRecord(ids=tuple(rejected), pointer=pointer)] if rejected else ()),
            *_tried_records(tried),
        ]

    def remember(
        self, request: Sequence[Acknowledgement], outcomes: Sequence[LeaseOutcome]
    ) -> None:
        """Keep the outcomes for repetitions of the request, whose reply may be lost."""
        for each, outcome in zip(request, outcomes, strict=True):
            if outcome in (LeaseOutcome.ACCEPTED, LeaseOutcome.REJECTED):
                self._acknowledged[each.id] = each.token, outcome
        while len(self._acknowledged) > REMEMBERED_COUNT_MAX:
            del self._acknowledged[next(iter(self._acknowledged))]

    # For people.

    def counts(self) -> dict[str, int]:
        """How many messages from the oldest one that is not done on are in which state; `done`: of
        those that were read since the load."""
        found = Counter(self._states())
        further_count = sum(self._keys[each].further_count for each in self._further)
        found["blocked"] += further_count
        first = self._messages[self._window[0]].position if self._window else self._read_count
        left_count = len(self._messages) + further_count
        found["done"] = max(0, self._read_count - first - left_count)
        names = ("available", "blocked", "leased", "waiting", "undecided", "done")
        return {name: found[name] for name in names}

    @property
    def oldest(self) -> bytes | None:
        """The oldest message of the window that is not done."""
        return self._window[0] if self._window else None

    def _states(self) -> Iterator[str]:
        for message_id, message in self._messages.items():
            if message_id in self._undecided:
                yield "undecided"
            elif message.phase is Phase.AVAILABLE and not self._is_oldest(message_id):
                yield "blocked"
            else:
                yield message.phase.value

    def _decide(
        self, each: Acknowledgement, pointer: int | None, expiring: Collection[bytes]
    ) -> tuple[LeaseOutcome, bool]:
        """The outcome, and whether anything is to be done for it."""
        message, success = self._messages.get(each.id), _SUCCESS[each.action]
        if message is None:
            message = self._gone.get(each.id)
        if message is None:
            # A transaction does not repeat what another one, or none, has done before.
            is_repeated = self._acknowledged.get(each.id) == (each.token, success)
            return success if is_repeated and pointer is None else LeaseOutcome.LEASE_LOST, False
        if not self._is_last_delivery(message, each.token):
            return LeaseOutcome.LEASE_LOST, False
        undecided = self._undecided.get(each.id)
        if undecided is not None:
            # The consumer has acknowledged it already, and its lease is of no importance.
            is_same = undecided == pointer or each.action is LeaseAction.RENEW
            return success if is_same else LeaseOutcome.LEASE_LOST, False
        if each.action is LeaseAction.RENEW and message.phase is Phase.WAITING:
            return LeaseOutcome.LEASE_LOST, False
        is_failure = each.action is LeaseAction.RELEASE and each.attempt is not AttemptReport.NONE
        if is_failure and (each.id in expiring or each.id in self._gone):
            return LeaseOutcome.EXPIRES, False
        return success, True

    def _is_last_delivery(self, message: _Message, token: Token) -> bool:
        if token.epoch == self.epoch:
            return token.number == message.delivery
        # A delivery before the group was loaded: no other consumer has the message since.
        return token.epoch < self.epoch and message.delivery == 0

    def _renew(self, each: Acknowledgement, *, until_ms: int) -> None:
        message = self._messages[each.id]
        if message.phase is not Phase.LEASED:
            message.is_suspect = False  # its consumer is only late
        self._set_until(each.id, Phase.LEASED, until_ms)
        if each.attempt is AttemptReport.BEGUN and not message.is_begun:
            message.is_begun = True
            self._unwritten.add(each.id)

    def _release(self, each: Acknowledgement, *, now_ms: int) -> list[Tries]:
        """What is to be written of the release."""
        message = self._messages[each.id]
        is_begun_in_log = message.is_begun and each.id not in self._unwritten
        if each.attempt in (AttemptReport.BEGUN, None):
            message.attempts += 1
            message.is_alone = message.is_suspect = False
        elif each.attempt is AttemptReport.UNKNOWN:
            message.is_alone = True
        elif message.phase is not Phase.LEASED:
            message.is_suspect = False  # its consumer is alive, and had not begun it
        message.is_begun = False
        self._deliveries_count += 1
        message.delivery = self._deliveries_count  # its token is of no use any more
        if each.ms:
            self._set_until(each.id, Phase.WAITING, now_ms + each.ms)
        else:
            self._make_available(each.id)
        self._unwritten.discard(each.id)
        if not (message.attempts or each.ms or is_begun_in_log):
            return []  # the log has nothing of it
        return [_tries_of(each.id, message)]

    def _restore_tries(self, tries: Tries, message: _Message) -> None:
        message.attempts, message.lost = tries.attempts, tries.lost
        message.is_begun = tries.is_begun
        message.is_alone = tries.is_begun or tries.lost > 0
        if tries.due_ms:
            self._set_until(tries.id, Phase.WAITING, tries.due_ms)
        else:
            self._make_available(tries.id)

    def _set_until(self, message_id: bytes, phase: Phase, until_ms: int) -> None:
        message = self._messages[message_id]
        message.phase, message.until_ms = phase, until_ms
        heapq.heappush(self._times, (until_ms, message_id))
        if len(self._times) > self._heap_count_max:
            self._times = sorted(each for each in set(self._times) if self._is_time_of(*each))

    def _is_time_of(self, at_ms: int, message_id: bytes) -> bool:
        """Whether a lease or a delay of this message ends then."""
        message = self._messages.get(message_id)
        return (
            message is not None
            and message.phase is not Phase.AVAILABLE
            and message.until_ms == at_ms
        )

    @property
    def _heap_count_max(self) -> int:
        """Entries of a heap; with more, most are out of date, as after many renewals of leases."""
        return 2 * len(self._messages) + STALE_COUNT

    def _make_available(self, message_id: bytes) -> None:
        self._messages[message_id].phase = Phase.AVAILABLE
        self._note_available(message_id)

    def _note_available(self, message_id: bytes) -> None:
        if self._can_be_given_out(message_id):
            heapq.heappush(self._available, message_id)
            if len(self._available) > self._heap_count_max:
                self._available = sorted(filter(self._can_be_given_out, {*self._available}))

    def _can_be_given_out(self, message_id: bytes) -> bool:
        message = self._messages.get(message_id)
        return (
            message is not None
            and message.phase is Phase.AVAILABLE
            and message_id not in self._undecided
            and self._is_oldest(message_id)
        )

    def _is_oldest(self, message_id: bytes) -> bool:
        key = self._messages[message_id].key
        return not self._is_by_key or key is None or self._keys[key].ids[0] == message_id

    def _finish(self, message_id: bytes) -> None:
        if message_id not in self._messages and message_id > self._seen_to:
            self.ahead.add(message_id)
            self._tries.pop(message_id, None)
        self._undecided.pop(message_id, None)
        self._gone.pop(message_id, None)
        self._remove(message_id)
        self._trim()

    def _remove(self, message_id: bytes) -> _Message | None:
        message = self._messages.pop(message_id, None)
        self._unwritten.discard(message_id)
        if message is None or not self._is_by_key or message.key is None:
            return message
        of_key = self._keys[message.key]
        while of_key.ids and of_key.ids[0] not in self._messages:
            of_key.ids.popleft()
        if of_key.ids:
            self._note_available(of_key.ids[0])
        elif of_key.behind is None:
            del self._keys[message.key]
        return message

    def _trim(self) -> None:
        """Let the window begin with a message that is not done."""
        while self._window and self._window[0] not in self._messages:
            heapq.heappop(self._window)
        if len(self._window) > self._heap_count_max:
            self._window = sorted(self._messages)


def _tried_records(tried: Sequence[Tries]) -> list[TriedRecord]:
    return [TriedRecord(tuple(part)) for part in _parts(tried)]


def _parts(all_of_them: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts that fit into one record."""
    for start in range(0, len(all_of_them), IDS_COUNT_MAX):
        yield all_of_them[start : start + IDS_COUNT_MAX]


def _tries_of(message_id: bytes, message: _Message) -> Tries:
    return Tries(
        id=message_id,
        attempts=message.attempts,
        lost=message.lost,
        is_begun=message.is_begun,
        due_ms=message.until_ms if message.phase is Phase.WAITING else 0,
    )


def _id_before(message_id: bytes) -> bytes:
    return MessageId.from_int(max(0, MessageId.from_bytes(message_id).to_int() - 1)).to_bytes()
