"""Readers of a simulated server: polls, and what their replies show."""

from collections.abc import Callable
from typing import Any

from messaging.model.visibility import start_after
from messaging.read.poll import Poll
from tests.simulation import invariants
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.observations import Applied, Observations, ObservedTopic, Read, Tx
from tests.simulation.server import SimulatedServer
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
from tuff.protocol.ids import MessageId, Offset
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


def state_named_by(error: TransactionNotInProgressError) -> str:
    """The state of the transaction that this refusal reports."""
    return _STATES[type(error)]


class Readers:
    """All readers. `waiting` are the long polls without a reply: their topic and transaction."""

    def __init__(
        self,
        observed: Observations,
        server: SimulatedServer,
        note_state: Callable[[Tx, int, str, str | None], None],
    ) -> None:
        self._observed = observed
        self._server = server
        self._note_state = note_state
        self.waiting: dict[Poll, tuple[ObservedTopic, Tx | None]] = {}

    def use_server(self, server: SimulatedServer) -> None:
        """The server was started again."""
        self._server = server
        self.waiting.clear()

    async def read(self, topic: ObservedTopic, poll: Poll, reader: Tx | None = None) -> Read | None:
        """One poll, recorded and checked; None when the server could not answer."""
        if poll.wait_s:
            self.waiting[poll] = topic, reader
        try:
            return await self._read(topic, poll, reader)
        finally:
            self.waiting.pop(poll, None)

    async def _read(self, topic: ObservedTopic, poll: Poll, reader: Tx | None) -> Read | None:
        observed, invoked, now_ms = self._observed, self._observed.moment(), self._server.now_ms()
        try:
            found = await self._server.messaging.polls.poll(topic.id, poll)
        except TopicNotFoundError:
            return None
        except TransactionNotInProgressError as error:
            assert reader is not None
            self._note_state(reader, invoked, state_named_by(error), None)
            return None
        except UnavailableError as error:
            is_plain = poll.isolation is Isolation.ALL and not poll.is_fixed
            if is_plain and error.code == "transactions_unavailable":
                raise BrokenPromiseError(f"promise 7: a plain read got {error}") from error
            return None
        committed = poll.isolation is Isolation.COMMITTED
        read = Read(
            topic=topic.id.name,
            kind="committed" if committed else "all" if reader is None else "snapshot",
            snapshot=None if reader is None else reader.snapshot_now(),
            start=start_after(poll.start, inclusive=poll.inclusive),
            invoked=invoked,
            completed=observed.moment(),
            now_ms=now_ms,
            items=found.items,
            next_id=found.next_id,
            caught_up=found.caught_up and poll.through is None,
            blocked_by=found.blocked_by,
        )
        self._learn(topic, read)
        return read

    def _learn(self, topic: ObservedTopic, read: Read) -> None:
        self._note_places(read)
        self.check(read)
        for id_bytes, payload in read.items:
            topic.payload_of[id_bytes] = payload
            topic.id_of[payload] = id_bytes
            publish = self._observed.publish_of[payload]
            publish.end(read.completed, Applied.YES)
            if read.kind != "all" and publish.tx is not None:
                is_own = read.snapshot and read.snapshot.transaction_id == publish.tx.id
                if not is_own:
                    topic.committed_id_of[payload] = id_bytes
                    publish.tx.first_shown = min(publish.tx.first_shown, read.completed)
        topic.reads.append(read)
        if read.kind == "all" and read.start == _BEGINNING:
            topic.read_up_to = max(topic.read_up_to, read.next_id)
            if read.caught_up:
                _settle_what_is_missing(self._observed, topic, read)

    def check(self, read: Read) -> None:
        """Check a read by all that is known now. It is repeated when more is known."""
        observed = self._observed
        for promise, check in _CHECKS:
            for sentence in check(observed, read):
                raise BrokenPromiseError(f"promise {promise}: {sentence}")

    def _note_places(self, read: Read) -> None:
        for id_bytes, payload in read.items:
            publish = self._observed.publish_of.get(payload)
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


def range_of(topic: ObservedTopic, a: int, b: int, c: int) -> dict[str, Any]:
    """The range of a poll: from the beginning, from the end of an earlier read, or from a time;
    sometimes with an end or a limit."""
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


def _settle_what_is_missing(observed: Observations, topic: ObservedTopic, read: Read) -> None:
    """A publish without a reply that a complete read does not show must never appear later."""
    ttl_changes = [each.ttl_s for each in topic.ttl_changes]
    for publish in topic.publishes:
        # Expired messages are missing as well, and come back when the clock is set back.
        lives_ms = min(*ttl_changes, publish.ttl_s or ttl_changes[0]) * 1000
        was_cut_off = publish.applied is Applied.UNKNOWN and publish.completed < read.invoked
        if was_cut_off and publish.first is None and lives_ms > observed.time_span_ms:
            publish.end(read.completed, Applied.NO)
