"""Readers of a simulated server: polls, and what is learnt from what they are handed."""

from collections.abc import Callable
from typing import Any

from messaging.read.poll import Poll
from messaging.read.visibility import Undecided, start_number
from tests.simulation import invariants
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.observations import Facts, Fate, Read, TopicFacts, Tx
from tests.simulation.server import Life
from tuff.protocol.errors import (
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionInvalidatedError,
    TransactionNotInProgressError,
    TransactionTimedOutError,
    TransactionUnknownError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId, Offset
from tuff.protocol.requests import Isolation

_STATES: dict[type[TuffError], str] = {
    TransactionCommittedError: "committed",
    TransactionAbortedError: "aborted",
    TransactionInvalidatedError: "invalid",
    TransactionTimedOutError: "invalid",
    TransactionUnknownError: "unknown",
}
_BEGINNING = bytes(20)
_CHECKS = [
    (promise, check) for promise, checks in invariants.READ_CHECKS.items() for check in checks
]


def state_told_by(error: TransactionNotInProgressError) -> str:
    """The state of a transaction that a refusal speaks of."""
    return _STATES[type(error)]


class Readers:
    """All readers together. `waiting` are polls without an answer yet, of whom and on what."""

    def __init__(
        self, facts: Facts, life: Life, note_state: Callable[[Tx, int, str, str | None], None]
    ) -> None:
        self._facts = facts
        self._life = life
        self._note_state = note_state
        self.waiting: dict[Poll, tuple[TopicFacts, Tx | None]] = {}

    def lives_on(self, life: Life) -> None:
        """The server was started again."""
        self._life = life
        self.waiting.clear()

    async def read(self, topic: TopicFacts, poll: Poll, reader: Tx | None = None) -> Read | None:
        """One poll, noted and checked; None when the server could not answer."""
        if poll.wait_s:
            self.waiting[poll] = topic, reader
        try:
            return await self._read(topic, poll, reader)
        finally:
            self.waiting.pop(poll, None)

    async def _read(self, topic: TopicFacts, poll: Poll, reader: Tx | None) -> Read | None:
        facts, asked, now_ms = self._facts, self._facts.moment(), self._life.now_ms()
        try:
            found = await self._life.messaging.polls.poll(topic.id, poll)
        except TopicNotFoundError:
            return None
        except TransactionNotInProgressError as error:
            assert reader is not None
            self._note_state(reader, asked, state_told_by(error), None)
            return None
        except UnavailableError as error:
            is_plain = poll.isolation is Isolation.ALL and not poll.is_fixed
            if is_plain and error.code == "transactions_unavailable":
                raise BrokenPromiseError(f"promise 7: a plain read was told {error}") from error
            return None
        behind = max(0, start_number(poll.start, inclusive=poll.inclusive) - 1)
        committed = poll.isolation is Isolation.COMMITTED
        read = Read(
            topic=topic.id.name,
            kind="committed" if committed else "all" if reader is None else "snapshot",
            snapshot=None if reader is None else reader.snapshot_now(),
            skips=poll.undecided is Undecided.SKIP,
            start=behind.to_bytes(MESSAGE_ID_SIZE, "big"),
            asked=asked,
            told=facts.moment(),
            now_ms=now_ms,
            items=found.items,
            next_id=found.next_id,
            caught_up=found.caught_up and poll.through is None,
            blocked_by=found.blocked_by,
        )
        self._learn(topic, read)
        return read

    def _learn(self, topic: TopicFacts, read: Read) -> None:
        self._note_places(read)
        self.check(read)
        for id_bytes, payload in read.items:
            topic.payload_of[id_bytes] = payload
            topic.id_of[payload] = id_bytes
            publish = self._facts.publish_of[payload]
            publish.end(read.told, Fate.DONE)
            if read.kind != "all" and publish.tx is not None:
                is_own = read.snapshot and read.snapshot.transaction_id == publish.tx.id
                if not is_own:
                    publish.tx.handed_over = min(publish.tx.handed_over, read.told)
        topic.reads.append(read)
        if read.kind == "all" and read.start == _BEGINNING:
            topic.covered = max(topic.covered, read.next_id)
            if read.caught_up:
                _settle_what_is_missing(self._facts, topic, read)

    def check(self, read: Read) -> None:
        """All that can be said of a read now; once more is known, more can."""
        facts = self._facts
        for promise, check in _CHECKS:
            for sentence in check(facts, read):
                raise BrokenPromiseError(f"promise {promise}: {sentence}")

    def _note_places(self, read: Read) -> None:
        for id_bytes, payload in read.items:
            publish = self._facts.publish_of.get(payload)
            if publish is None or publish.first is not None:
                continue
            place = MessageId.from_bytes(id_bytes).offset
            if publish.brings is not None:
                publish.first = publish.last = place
            else:
                before = publish.payloads.index(payload)
                first = Offset(place.timestamp_ms, place.seq_id - before)
                last = Offset(first.timestamp_ms, first.seq_id + len(publish.payloads) - 1)
                publish.first, publish.last = first, last


def range_of(topic: TopicFacts, a: int, b: int, c: int) -> dict[str, Any]:
    """What part of a topic a poll asks for: from the beginning, from where somebody was, or from a
    time on; now and then with an end, or a limit."""
    places = [MessageId.from_bytes(read.next_id) for read in topic.reads]
    start: MessageId | int | None = None
    if places and c % 3 == 0:
        start = places[c % len(places)]
    elif places and c % 7 == 1:
        start = places[c % len(places)].publish_timestamp_ms
    return {
        "start": start,
        "inclusive": start is None or (isinstance(start, int) and a % 8 < 4),
        "through": places[b % len(places)] if places and c % 8 == 5 else None,
        "limit": 1 + c % 4 if c % 5 == 0 else None,
    }


def _settle_what_is_missing(facts: Facts, topic: TopicFacts, read: Read) -> None:
    """What was cut off, and is not there now, must never come."""
    lifetimes = [each.ttl_s for each in topic.lifetimes]
    for publish in topic.publishes:
        # What expired is missing, too, and a clock that is set back shows it again.
        lives_ms = min(*lifetimes, publish.ttl_s or lifetimes[0]) * 1000
        was_cut_off = publish.fate is Fate.OPEN and publish.told < read.asked
        if was_cut_off and publish.first is None and lives_ms > facts.time_span_ms:
            publish.end(read.told, Fate.NOT_DONE)
