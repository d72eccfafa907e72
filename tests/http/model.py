"""A model of visibility, as plain as possible: which reader gets which rows (protocol §6)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

ENDED = frozenset({"committed", "aborted", "invalid"})


class Verdict(Enum):
    DELIVER = "deliver"
    SKIP = "skip"
    UNDECIDED = "undecided"


@dataclass(slots=True, eq=False)
class ModelTx:
    """A transaction. `sees`: those that had committed when it started. `refused`: it has met a
    conflict, and can only be aborted or invalidated."""

    id: str
    is_long: bool
    sees: frozenset[str]
    pointers: list[str]
    state: str = "in_progress"
    refused: bool = False
    changes: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class ModelRow:
    """A row: of which transaction (None: of no one), the payloads it brings, rolled back or not."""

    tx: ModelTx | None
    payloads: list[str]
    is_rolled_back: bool = False


@dataclass(slots=True)
class View:
    """What a reader gets, and the transaction that holds it back."""

    payloads: list[str]
    is_held: bool
    blocked_by: str | None


class Model:
    """Topics and transactions of one client that does one thing at a time."""

    def __init__(self, topics: list[str]) -> None:
        self.rows: dict[str, list[ModelRow]] = {name: [] for name in topics}
        self.generations = dict.fromkeys(topics, 1)
        self.stored: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.transactions: dict[str, ModelTx] = {}
        self.last_committer: dict[str, str] = {}

    def begin(self, tx_id: str, *, is_long: bool) -> ModelTx:
        tx = ModelTx(tx_id, is_long, frozenset(self._committed()), [tx_id])
        self.transactions[tx_id] = tx
        return tx

    def _committed(self) -> Iterator[str]:
        return (tx.id for tx in self.transactions.values() if tx.state == "committed")

    def publish(self, topic: str, payloads: list[str], tx: ModelTx | None = None) -> ModelRow:
        row = ModelRow(tx, payloads)
        self.rows[topic].append(row)
        return row

    def store(self, topic: str, payloads: list[str], pointer: str) -> None:
        entries = [(self.generations[topic], payload) for payload in payloads]
        self.stored.setdefault((topic, pointer), []).extend(entries)

    def reference(self, topic: str, tx: ModelTx, pointer: str) -> ModelRow | None:
        """The row that brings what was stored; None where that is of an older generation."""
        waiting = self.stored.get((topic, pointer), [])
        if any(generation != self.generations[topic] for generation, _ in waiting):
            return None
        self.stored[topic, pointer] = []
        return self.publish(topic, [payload for _, payload in waiting], tx)

    def remake(self, topic: str) -> None:
        self.rows[topic] = []
        self.generations[topic] += 1

    def conflict(self, tx: ModelTx, changes: set[str]) -> bool:
        """Whether a change's last committer is not visible to this transaction."""
        if tx.is_long:
            return False
        committers = {self.last_committer.get(change) for change in changes} - {None}
        return not committers <= tx.sees

    def commit(self, tx: ModelTx, changes: set[str]) -> None:
        tx.state = "committed"
        if not tx.is_long:
            self.last_committer.update(dict.fromkeys(changes, tx.id))

    def take_back(self, tx: ModelTx, state: str) -> None:
        tx.state = state
        for rows in self.rows.values():
            for row in rows:
                row.is_rolled_back |= row.tx is tx

    def read(self, topic: str, reader: ModelTx | str, *, skips: bool = False) -> View:
        """`reader`: a transaction, or the isolation `all` or `committed`."""
        delivered: list[str] = []
        for row in self.rows[topic]:
            verdict = self._verdict(row, reader)
            if verdict is Verdict.DELIVER:
                delivered += row.payloads
            elif verdict is Verdict.UNDECIDED and not skips:
                assert row.tx is not None
                blocker = row.tx.id if row.tx.state == "in_progress" else None
                return View(delivered, is_held=True, blocked_by=blocker)
        return View(delivered, is_held=False, blocked_by=None)

    def _verdict(self, row: ModelRow, reader: ModelTx | str) -> Verdict:
        if row.tx is None or reader == "all":
            return Verdict.DELIVER
        if row.is_rolled_back:
            return Verdict.SKIP
        sees = reader.sees | {reader.id} if isinstance(reader, ModelTx) else set(self._committed())
        return Verdict.DELIVER if row.tx.id in sees else Verdict.UNDECIDED
