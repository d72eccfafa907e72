"""A table compared with a map of all versions ever written, with many transactions at once.

After every step each open transaction must read from the table the versions of the map for which
`is_visible` holds, whatever was checkpointed, rolled back, crashed, timed out, compacted and
truncated meanwhile.

It has caught these planted bugs, among others: a bound that ignores commits that open transactions
do not see, or is one too high; invalid versions that are kept, or that cover older ones; a reader
or writer that is accepted after it ended and the table was compacted, or after a restart; a
rollback of only the current pointer or the first batch; undo rows overwritten by the next batch, or
by the next process; a checkpoint that moves earlier writes; a write in memory that does not replace
the stored one, in a get or in a scan; changes without the writes that were stored early; keys that
are not escaped, or not terminated.
"""

from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.table.conftest import open_with_id
from tests.table.crash_copy import copy_as_crashed
from tests.table.service_model import Service, pointers_of
from tuff.protocol.errors import TransactionNotInProgressError
from tuff.protocol.transaction import Transaction, TransactionType, VisibilityLevel
from tuff.tables.versioned_table import VersionedTable

T = TypeVar("T")

TABLE_ID = b"0123456789abcdef"
MEMORY = Path("/dev/shm")  # where a sync costs nothing; this is not about disks
BUFFER_BYTES = 600  # bytes; three writes or so, and the next goes to disk
KEYS = [b"", b"\x00", b"a", b"a\x00", b"ab", b"b"]
OPEN_MAX = 6

keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"1", b"2", b"x" * 100, None])  # None: delete it
indexes = st.integers(0, OPEN_MAX - 1)
writes = st.lists(st.tuples(keys, values), min_size=1, max_size=4)

Rows = list[tuple[bytes, bytes]]
Writes = list[tuple[bytes, bytes | None]]


@dataclass
class Actor:
    """One transaction, with the context that works in it."""

    transaction: Transaction
    context: Context = field(default_factory=Context)
    is_joined: bool = False
    is_written: bool = False
    is_dead: bool = False  # the service has ended it, and the program does not know
    wrote: set[bytes] = field(default_factory=set)
    scans: list[tuple[Iterator[tuple[bytes, bytes]], Rows]] = field(default_factory=list)

    def run(self, call: Callable[..., T], *arguments: object) -> T:
        return self.context.run(call, *arguments)


def can_work(actor: Actor) -> bool:
    return actor.is_joined and not actor.is_written


def can_live(actor: Actor) -> bool:
    return can_work(actor) and not actor.is_dead


def when(can: Callable[[Actor], bool]) -> Callable[[T], T]:
    """A rule that needs an actor for which `can` holds."""
    return precondition(lambda self: any(map(can, self.actors)))


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = TemporaryDirectory(
            prefix="tuff-table-", dir=MEMORY if MEMORY.is_dir() else None
        )
        self.home_count = 0
        self.service = Service()
        self.actors: list[Actor] = []
        self.versions: dict[bytes, dict[int, bytes | None]] = {}
        self.truncated: set[int] = set()  # versions under these must never be visible
        self.table = self.open(Path(self.root.name) / "0")

    def open(self, home: Path) -> VersionedTable:
        self.home = home
        return open_with_id(home, buffer_bytes=BUFFER_BYTES, new_id=lambda: TABLE_ID)

    def copy_as_crashed(self, home: Path) -> None:
        copy_as_crashed(self.home, home)

    def teardown(self) -> None:
        self.table.close()
        self.root.cleanup()

    def actor(self, index: int, can: Callable[[Actor], bool]) -> Actor:
        found = [one for one in self.actors if can(one)]
        return found[index % len(found)]

    def forget(self, transaction: Transaction) -> None:
        for versions in self.versions.values():
            for pointer in pointers_of(transaction):
                versions.pop(pointer, None)

    def expected(self, transaction: Transaction) -> Rows:
        rows = []
        for key, versions in sorted(self.versions.items()):
            seen = [pointer for pointer in versions if transaction.is_visible(pointer)]
            value = versions[max(seen)] if seen else None
            if value is not None:
                rows.append((key, value))
        return rows

    # Beginnings and writes

    @initialize(rows=writes)
    def begin(self, rows: Writes) -> None:
        for kind in (TransactionType.SHORT, TransactionType.LONG, TransactionType.SHORT):
            self.start(kind, is_joined=True, rows=rows)

    @precondition(lambda self: len(self.actors) < OPEN_MAX)
    @rule(kind=st.sampled_from(TransactionType), is_joined=st.booleans(), rows=writes)
    def start(self, kind: TransactionType, is_joined: bool, rows: Writes) -> None:
        actor = Actor(self.service.start(kind))
        self.actors.append(actor)
        if is_joined:
            self.start_tx(actor)
            self.write_all(actor, rows)

    @when(lambda one: not one.is_joined)
    @rule(index=indexes)
    def join(self, index: int) -> None:
        self.start_tx(self.actor(index, lambda one: not one.is_joined))

    def start_tx(self, actor: Actor) -> None:
        actor.run(self.table.start_tx, actor.transaction)
        actor.is_joined = True

    @when(can_work)
    @rule(index=indexes, rows=writes)
    def write(self, index: int, rows: Writes) -> None:
        self.write_all(self.actor(index, can_work), rows)

    def write_all(self, actor: Actor, rows: Writes) -> None:
        try:
            for key, value in rows:
                # Recorded first: a write whose early storing is refused stays in memory.
                pointer = actor.transaction.write_pointer
                if pointer not in self.truncated:
                    self.versions.setdefault(key, {})[pointer] = value
                actor.wrote.add(key)
                if value is None:
                    actor.run(self.table.delete, key)
                else:
                    actor.run(self.table.put, key, value)
        except TransactionNotInProgressError:
            assert actor.is_dead

    @when(can_live)
    @rule(index=indexes, rows=writes)
    def checkpoint(self, index: int, rows: Writes) -> None:
        actor = self.actor(index, can_live)
        self.write_all(actor, rows)
        level = actor.transaction.visibility_level
        made = self.service.checkpoint(actor.transaction)
        actor.transaction = replace(made, visibility_level=level)
        actor.run(self.table.update_tx, actor.transaction)

    @when(can_work)
    @rule(index=indexes, level=st.sampled_from(VisibilityLevel))
    def see(self, index: int, level: VisibilityLevel) -> None:
        actor = self.actor(index, can_work)
        actor.transaction = replace(actor.transaction, visibility_level=level)
        actor.run(self.table.update_tx, actor.transaction)

    # Reading goes on

    @when(can_live)
    @rule(index=indexes, start=st.none() | keys, stop=st.none() | keys)
    def begin_scan(self, index: int, start: bytes | None, stop: bytes | None) -> None:
        actor = self.actor(index, can_live)
        expected = [
            row
            for row in self.expected(actor.transaction)
            if (start is None or start <= row[0]) and (stop is None or row[0] < stop)
        ]
        actor.scans.append((actor.run(self.table.scan, start, stop), expected))

    @when(lambda one: can_work(one) and bool(one.scans))
    @rule(index=indexes)
    def read_on(self, index: int) -> None:
        actor = self.actor(index, lambda one: can_work(one) and bool(one.scans))
        scan, expected = actor.scans[-1]
        try:
            found = next(scan, None)
        except TransactionNotInProgressError:
            # In HBase, rows of an open scan may be compacted away.
            assert actor.is_dead
            actor.scans.pop()
        else:
            assert found == (expected.pop(0) if expected else None)

    # Ends

    @when(lambda one: one.is_joined and not one.is_dead)
    @rule(index=indexes, rows=writes)
    def commit(self, index: int, rows: Writes) -> None:
        actor = self.actor(index, lambda one: one.is_joined and not one.is_dead)
        if can_work(actor):
            self.write_all(actor, rows)
        changes = {TABLE_ID + key for key in actor.wrote}
        if actor.transaction.type is TransactionType.LONG:
            changes = {TABLE_ID} if changes else set()
        assert set(actor.run(self.table.tx_changes, actor.transaction)) == changes
        actor.run(self.table.commit_tx, actor.transaction)
        self.service.commit(actor.transaction)
        actor.run(self.table.post_commit, actor.transaction)
        self.actors.remove(actor)

    @when(can_work)
    @rule(index=indexes, rows=writes)
    def commit_half(self, index: int, rows: Writes) -> None:
        actor = self.actor(index, can_work)
        self.write_all(actor, rows)
        try:
            actor.run(self.table.commit_tx, actor.transaction)
            actor.is_written = True
        except TransactionNotInProgressError:
            assert actor.is_dead

    @when(lambda one: one.is_joined)
    @rule(index=indexes)
    def roll_back(self, index: int) -> None:
        actor = self.actor(index, lambda one: one.is_joined)
        actor.run(self.table.rollback_tx, actor.transaction)
        actor.run(self.table.rollback_tx, actor.transaction)
        self.service.abort(actor.transaction)
        self.forget(actor.transaction)
        self.actors.remove(actor)

    @when(lambda one: not one.is_dead)
    @rule(index=indexes)
    def time_out(self, index: int) -> None:
        actor = self.actor(index, lambda one: not one.is_dead)
        self.service.invalidate(actor.transaction)
        actor.is_dead = True

    @when(lambda one: one.is_dead)
    @rule(index=indexes)
    def vanish(self, index: int) -> None:
        """It is never ended."""
        self.actors.remove(self.actor(index, lambda one: one.is_dead))

    @rule(truncates=st.booleans())
    def compact(self, truncates: bool) -> None:
        invalid = sorted(self.service.invalids)
        assert self.table.compact(self.service) == invalid
        if truncates:
            self.service.truncate(invalid)
            self.truncated.update(invalid)
            for versions in self.versions.values():
                for pointer in invalid:
                    versions.pop(pointer, None)

    @rule(is_clean=st.booleans(), rolls_back=st.booleans(), goes_on=st.booleans(), rows=writes)
    def restart(self, is_clean: bool, rolls_back: bool, goes_on: bool, rows: Writes) -> None:
        """The process ends, and another one opens the table as it is on disk at that moment."""
        self.home_count += 1
        home = Path(self.root.name) / str(self.home_count)
        if is_clean:
            self.table.close()
        self.copy_as_crashed(home)
        self.table.close()
        left, self.actors = self.actors, []
        self.table = self.open(home)
        for actor in left:
            if goes_on and actor.is_joined and actor.is_written:
                self.go_on(actor)
            else:
                self.after_restart(actor, rolls_back=rolls_back)
        self.begin(rows)

    def go_on(self, actor: Actor) -> None:
        """All its writes are on disk, and the next process continues it."""
        actor.context, actor.scans, actor.is_written = Context(), [], False
        self.actors.append(actor)
        self.start_tx(actor)

    def after_restart(self, actor: Actor, *, rolls_back: bool) -> None:
        if not actor.is_joined:
            self.actors.append(actor)
        elif actor.is_written and not actor.is_dead:
            self.service.commit(actor.transaction)
        elif rolls_back:
            # The next process knows the transaction as it was at its start.
            first = replace(actor.transaction, checkpoint_write_pointers=())
            actor.context = Context()
            actor.run(self.table.start_tx, first)
            actor.run(self.table.rollback_tx, first)
            self.service.abort(actor.transaction)
            self.forget(actor.transaction)
        elif not actor.is_dead:
            self.service.invalidate(actor.transaction)

    # What always holds

    @invariant()
    def every_transaction_reads_its_snapshot(self) -> None:
        for actor in self.actors:
            if can_work(actor):
                self.reads_its_snapshot(actor)

    def reads_its_snapshot(self, actor: Actor) -> None:
        try:
            rows = actor.run(lambda: list(self.table.scan()))
            found = {key: actor.run(self.table.get, key) for key in KEYS}
        except TransactionNotInProgressError:
            assert actor.is_dead
            return
        expected = self.expected(actor.transaction)
        assert rows == expected
        assert found == dict.fromkeys(KEYS) | dict(expected)

    @invariant()
    def a_new_transaction_reads_all_commits(self) -> None:
        actor = Actor(self.service.start())
        actor.run(self.table.start_tx, actor.transaction)
        actor.is_joined = True
        self.reads_its_snapshot(actor)
        self.service.commit(actor.transaction)
        actor.run(self.table.post_commit, actor.transaction)


class TestTable(TableMachine.TestCase):
    settings = settings(max_examples=12, stateful_step_count=40)


@pytest.mark.slow
class TestTableAtLength(TableMachine.TestCase):
    settings = settings(max_examples=200, stateful_step_count=40)
