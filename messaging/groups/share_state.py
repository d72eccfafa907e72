"""The state of a share group, and its decisions. Pure (protocol §3.12; decision 0043, section 4).

Durable is only which messages are done: all up to the low mark, and a set above it. Leases, retry
times and the number of attempts are in memory. The *window* is what was read of the topic above the
low mark: messages that are done, and others in one of these phases:

    AVAILABLE  can be given out; with order by key, once it is the oldest of its key
    LEASED     a worker has it, until `until_ms`
    WAITING    was released with a delay, until `until_ms`

In each phase a transaction in progress may have acknowledged the message. Until that is decided, it
is not given out.
"""

import heapq
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from messaging.groups.share_records import (
    DoneRecord,
    LowMarkRecord,
    Order,
    ShareRecord,
    summary_of,
)
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId

STALE_COUNT = 1_000  # entries of a heap that may be out of date; then it is made again
REMEMBERED_COUNT_MAX = 10_000  # acknowledgements that are answered alike if they are repeated

_TOKEN = re.compile("([0-9a-f]{1,40})-([0-9a-f]{1,16})")


class Phase(Enum):
    AVAILABLE = "available"
    LEASED = "leased"
    WAITING = "waiting"


class Action(StrEnum):
    """What a worker does with a message that it leased."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"


class Outcome(StrEnum):
    """What an acknowledgement did."""

    ACCEPTED = "accepted"
    RELEASED = "released"
    REJECTED = "rejected"
    RENEWED = "renewed"
    LEASE_LOST = "lease_lost"  # nothing


_SUCCESS = {
    Action.ACCEPT: Outcome.ACCEPTED,
    Action.RELEASE: Outcome.RELEASED,
    Action.REJECT: Outcome.REJECTED,
    Action.RENEW: Outcome.RENEWED,
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
    def parse(cls, text: str) -> "Token":
        """Raises: BadRequestError."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise BadRequestError(f"{text[:80]!r} is not the token of a delivery")
        return cls(int(found[1], 16), int(found[2], 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One message of a request. `ms`: the delay of a release, 0 if it is None; or the length of a
    renewed lease, that of the group if it is None."""

    id: bytes
    token: Token
    action: Action
    ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A message that was given out: its token, how often it was since the group was loaded, and
    when the lease ends, in ms since the epoch."""

    id: bytes
    token: Token
    attempts: int
    until_ms: int


@dataclass(slots=True)
class _Message:
    key: bytes | None
    phase: Phase = Phase.AVAILABLE
    delivery: int = 0  # the number of the last one; 0 if there was none since the load
    attempts: int = 0
    until_ms: int = 0


class ShareState:
    """One share group in memory. `apply` and `end_transaction` change what is durable."""

    def __init__(self, after: bytes, *, order: Order, epoch: int) -> None:
        """A new group, which begins behind the id `after`."""
        self.read_to = after  # the window ends here, inclusive
        self.epoch = epoch
        self._is_by_key = order is Order.KEY
        self._low = after  # all up to here are done, at least
        self._window: deque[bytes] = (
            deque()
        )  # ascending; those that are not in `_messages` are done
        self._messages: dict[bytes, _Message] = {}
        self._ahead: set[bytes] = set()  # done, and behind the window: only after a load
        self._undecided: dict[bytes, int] = {}  # the pointer that acknowledges a message
        self._of_pointer: dict[int, list[bytes]] = {}  # the messages that it acknowledges
        self._keys: dict[bytes, deque[bytes]] = {}  # the messages of a key, the oldest first
        self._deliveries_count = 0
        # What is in a heap may be out of date, and is checked when it comes up.
        self._available: list[bytes] = []
        self._times: list[tuple[int, bytes]] = []
        self._acknowledged: dict[bytes, tuple[Token, Outcome]] = {}

    # What is durable.

    def apply(self, record: ShareRecord) -> None:
        """Change the state by a record of the log."""
        if isinstance(record, LowMarkRecord):
            self._low = self.read_to = max(self._low, record.low)
            self._ahead = {each for each in self._ahead if each > self._low}
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

    def undecided_pointers(self) -> list[int]:
        """The transactions that acknowledge messages, and of which the end is not known."""
        return [*self._of_pointer]

    def summary(self) -> list[ShareRecord]:
        """Records that make the durable part of an equal state, without undecided messages: their
        own records are still needed."""
        done = [each for each in self._window if each not in self._messages]
        return summary_of(self.low, [*done, *sorted(self._ahead)])

    @property
    def low(self) -> bytes:
        """All messages up to this id are done."""
        if not self._window:
            return max(self._low, self.read_to)
        return _id_before(self._window[0])

    # The window.

    @property
    def window_count(self) -> int:
        """Messages in the window, done ones included."""
        return len(self._window)

    def add(self, messages: Iterable[tuple[bytes, bytes | None]], *, read_to: bytes) -> None:
        """Messages behind the window with their keys, in order: all up to the id `read_to`."""
        for message_id, key in messages:
            self._window.append(message_id)
            if message_id in self._ahead:
                continue
            self._messages[message_id] = _Message(key)
            if self._is_by_key and key is not None:
                self._keys.setdefault(key, deque()).append(message_id)
            self._note_available(message_id)
        self.read_to = max(self.read_to, read_to)
        self._ahead = {each for each in self._ahead if each > self.read_to}
        self._trim()

    def forget_before(self, first: bytes) -> None:
        """Messages before this id have expired, or were truncated."""
        while self._window and self._window[0] < first:
            self._remove(self._window[0])
            self._trim()
        self.read_to = max(self.read_to, _id_before(first))

    def forget(self, ids: Iterable[bytes]) -> None:
        """These messages are not in the topic any more."""
        for each in ids:
            self._remove(each)
        self._trim()

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
            self._make_available(message_id)

    def candidates(self, count: int) -> list[bytes]:
        """Up to so many messages that can be given out, the oldest first. Then call `lease`,
        `put_back` or `forget` for each of them."""
        found: list[bytes] = []
        taken: set[bytes] = set()
        while self._available and len(found) < count:
            message_id = heapq.heappop(self._available)
            if message_id not in taken and self._can_be_given_out(message_id):
                taken.add(message_id)
                found.append(message_id)
        return found

    def put_back(self, message_id: bytes) -> None:
        """A candidate is not given out now."""
        self._note_available(message_id)

    def lease(self, message_id: bytes, *, until_ms: int) -> Lease:
        """Give a candidate out."""
        message = self._messages[message_id]
        self._deliveries_count += 1
        message.delivery = self._deliveries_count
        message.attempts += 1
        self._set_until(message_id, Phase.LEASED, until_ms)
        token = Token(self.epoch, message.delivery)
        return Lease(id=message_id, token=token, attempts=message.attempts, until_ms=until_ms)

    def acknowledge(
        self,
        request: Sequence[Acknowledgement],
        *,
        now_ms: int,
        lease_ms: int,
        pointer: int | None = None,
    ) -> tuple[list[Outcome], list[DoneRecord]]:
        """Renew and release at once, and return an outcome for each message and the records to
        write: acceptances and rejections count once these are applied, and then `remember`.

        An acknowledgement counts unless another delivery has, or later had, the message.
        """
        outcomes: list[Outcome] = []
        done: dict[bool, list[bytes]] = {False: [], True: []}
        for each in request:
            outcome, is_new = self._decide(each, pointer)
            outcomes.append(outcome)
            if is_new:
                if outcome in (Outcome.ACCEPTED, Outcome.REJECTED):
                    done[outcome is Outcome.REJECTED].append(each.id)
                elif outcome is Outcome.RENEWED:
                    self._set_until(each.id, Phase.LEASED, now_ms + (each.ms or lease_ms))
                else:
                    self._release(each.id, now_ms=now_ms, delay_ms=each.ms or 0)
        return outcomes, [
            DoneRecord(ids=tuple(ids), is_rejection=is_rejection, pointer=pointer)
            for is_rejection, ids in done.items()
            if ids
        ]

    def remember(self, request: Sequence[Acknowledgement], outcomes: Sequence[Outcome]) -> None:
        """Answer the same if these are repeated, since the reply may be lost."""
        for each, outcome in zip(request, outcomes, strict=True):
            if outcome in (Outcome.ACCEPTED, Outcome.REJECTED):
                self._acknowledged[each.id] = each.token, outcome
        while len(self._acknowledged) > REMEMBERED_COUNT_MAX:
            del self._acknowledged[next(iter(self._acknowledged))]

    # For people.

    def counts(self) -> dict[str, int]:
        """How many messages of the window are in which state."""
        found = Counter(self._states())
        names = ("available", "blocked", "leased", "waiting", "undecided", "done")
        found["done"] = len(self._window) - len(self._messages)
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

    def _decide(self, each: Acknowledgement, pointer: int | None) -> tuple[Outcome, bool]:
        """The outcome, and whether anything is to be done for it."""
        message, success = self._messages.get(each.id), _SUCCESS[each.action]
        if message is None:
            # A transaction does not repeat what another one, or none, has done before.
            is_repeated = self._acknowledged.get(each.id) == (each.token, success)
            return success if is_repeated and pointer is None else Outcome.LEASE_LOST, False
        if not self._is_last_delivery(message, each.token):
            return Outcome.LEASE_LOST, False
        undecided = self._undecided.get(each.id)
        if undecided is not None:
            # The worker has acknowledged it already, and its lease is of no importance.
            is_same = undecided == pointer or each.action is Action.RENEW
            return success if is_same else Outcome.LEASE_LOST, False
        if each.action is Action.RENEW and message.phase is Phase.WAITING:
            return Outcome.LEASE_LOST, False
        return success, True

    def _is_last_delivery(self, message: _Message, token: Token) -> bool:
        if token.epoch == self.epoch:
            return token.number == message.delivery
        # A delivery before the group was loaded: no other worker has the message since.
        return token.epoch < self.epoch and message.delivery == 0

    def _release(self, message_id: bytes, *, now_ms: int, delay_ms: int) -> None:
        self._deliveries_count += 1
        # The token of the delivery is of no use any more.
        self._messages[message_id].delivery = self._deliveries_count
        if delay_ms > 0:
            self._set_until(message_id, Phase.WAITING, now_ms + delay_ms)
        else:
            self._make_available(message_id)

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
        return not self._is_by_key or key is None or self._keys[key][0] == message_id

    def _finish(self, message_id: bytes) -> None:
        if message_id > self.read_to:
            self._ahead.add(message_id)
        self._remove(message_id)
        self._trim()

    def _remove(self, message_id: bytes) -> None:
        self._undecided.pop(message_id, None)
        message = self._messages.pop(message_id, None)
        if message is None or not self._is_by_key or message.key is None:
            return
        of_key = self._keys[message.key]
        while of_key and of_key[0] not in self._messages:
            of_key.popleft()
        if of_key:
            self._note_available(of_key[0])
        else:
            del self._keys[message.key]

    def _trim(self) -> None:
        """Take what is done from the beginning of the window."""
        while self._window and self._window[0] not in self._messages:
            self._low = self._window.popleft()


def _id_before(message_id: bytes) -> bytes:
    return MessageId.from_int(max(0, MessageId.from_bytes(message_id).to_int() - 1)).to_bytes()
