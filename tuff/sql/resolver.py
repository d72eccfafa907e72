"""Settles prepared transactions as their database decided, as flows (decision 0045 §3)."""

import logging
from dataclasses import dataclass
from typing import Annotated, Any

from tuff import transaction_calls
from tuff.errors import WrongStateError
from tuff.flows_and_repeated_calls import Flow, Pause, Retries, paused, unless
from tuff.protocol.errors import (
    TransactionCommittedError,
    TransactionUnknownError,
)
from tuff.protocol.transaction import TransactionState
from tuff.protocol.values import Member
from tuff.server_outages import Outages
from tuff.sql.database import Answer, Decider
from tuff.stop_signals import Stop
from tuff.transaction_calls import Resolution

log = logging.getLogger(__name__)

EVERY_S = 5.0  # seconds between two rounds: what a program that died adds to the wait of readers
ROUND_COUNT_MAX = 1_000  # prepared transactions that a round asks about
ROW_COUNT_MAX = 10_000  # rows of tuff_commits that a round reads: 2,000 transactions per second
DELETE_COUNT_MAX = 1_000  # rows of one delete: a short transaction of the database


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettled:
    """What one round of a resolver did. `open_count`: prepared ones whose database transaction is
    still open; the next round asks again. `deleted_count`: rows of settled ones."""

    committed_count: Annotated[int, Member("committed")]
    aborted_count: Annotated[int, Member("aborted")]
    open_count: Annotated[int, Member("open")]
    deleted_count: Annotated[int, Member("deletedRows")]


class ResolverFlows:
    """Rounds of a resolver. Belongs to one thread or task; `stop` may be called from any.

    Several resolvers of one database may run at once: all get the same answer from it.
    """

    def __init__(self, decider: Decider[Any], retries: Retries, *, every_s: float) -> None:
        self._decider = decider
        self._retries = retries
        self._every_s = every_s
        self._outages = Outages(
            f"the resolver of database {decider.database.name}",
            waits_for=lambda _: True,  # drivers share no class of errors
            awaited="the database or the server",
        )
        self._known: frozenset[int] = frozenset()
        self._stop = Stop()
        self._is_running = False

    def stop(self) -> None:
        """Let `run` return after its round, and at once while it waits."""
        self._stop.set()

    def run(self) -> Flow[None]:
        """Round after round, until `stop`; it outlasts outages of the database and the server."""
        self._is_running = True
        try:
            while not self._stop.is_set:
                yield from self._outages.outlasting(self._known_round, stop=self._stop)
                yield from unless(self._stop, paused(Pause(self._every_s)))
        finally:
            self._is_running = False

    def _known_round(self) -> Flow[None]:
        """One round, unless a stop has ended the wait before it."""
        if not self._stop.is_set:
            yield from self._round(self._known)

    def once(self) -> Flow[SqlSettled]:
        """Settle everything that is prepared now, and delete the rows of settled ones.

        Raises:
            WrongStateError: `run` works; or the database is not the one that programs use under
                this name.
            Exception: the database or the server is away.
        """
        if self._is_running:
            raise WrongStateError(
                "this resolver works already, round after round; call `once` of another one"
            )
        return (yield from self._round(None))

    def _round(self, known: frozenset[int] | None) -> Flow[SqlSettled]:
        """`known`: only these are old enough to be asked about; None: all are."""
        # By hand, a database without an identity is rather the wrong one.
        name = yield from self._decider.server_name(may_write=known is not None)
        # Before the list: a row that is visible here was prepared before the list is made.
        rows = yield from self._decider.rows(ROW_COUNT_MAX)
        listed = yield from self._retries.ask(transaction_calls.prepared(name))
        pointers = [one.transaction_id for one in listed]
        asked = [each for each in pointers if known is None or each in known][:ROUND_COUNT_MAX]
        self._known = frozenset(pointers)
        answers = []
        for pointer in asked:
            answers.append((yield from self._settle(pointer, name)))  # noqa: PERF401 - it yields
        deleted_count = yield from self._delete([row for row in rows if row not in self._known])
        return SqlSettled(
            committed_count=answers.count(Answer.COMMITTED),
            aborted_count=answers.count(Answer.NEVER),
            open_count=answers.count(Answer.OPEN),
            deleted_count=deleted_count,
        )

    def _settle(self, pointer: int, name: str) -> Flow[Answer]:
        answer = yield from self._decider.ask(pointer)
        if answer is Answer.OPEN:
            return answer
        outcome: Resolution = "commit" if answer is Answer.COMMITTED else "abort"
        try:
            yield from self._retries.ask(transaction_calls.resolve(pointer, outcome))
        except TransactionCommittedError:
            # Another resolver settled it and deleted the row before this one asked.
            return Answer.COMMITTED
        log.info("transaction %d of database %s was settled: %s", pointer, name, outcome)
        return answer

    def _delete(self, settled: list[int]) -> Flow[int]:
        """Delete the rows of settled transactions, except for the newest one.

        The server has to know that the newest one committed. Otherwise it may be another server, or
        one that was restored, whose list says nothing of these rows.
        """
        if len(settled) < 2:
            return 0
        try:
            newest = yield from self._retries.ask(transaction_calls.outcome(settled[0]))
        except TransactionUnknownError:
            return 0
        if newest.state is not TransactionState.COMMITTED:
            return 0
        for first in range(1, len(settled), DELETE_COUNT_MAX):
            yield from self._decider.delete(settled[first : first + DELETE_COUNT_MAX])
        return len(settled) - 1


def checked_every_s(seconds: float) -> float:
    """Raises: ValueError: it is no time between two rounds."""
    if not 0 < seconds <= 3_600:
        raise ValueError(f"a resolver works every 0 to 3,600 seconds, not {seconds}")
    return seconds
