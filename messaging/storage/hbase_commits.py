"""The slots of the journal, taken one by one by whoever writes (decision 0023).

A slot is taken by a compare-and-put that finds it empty. Slots whose rows are all in the tables are
deleted, but not those by which servers took the tables over: a server that was replaced, and wakes
up however late, finds its next slot taken by just such a claim.
"""

import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from messaging.storage import hbase_journal as journal
from messaging.storage.hbase_layout import BODY, JOURNAL, RowRange
from messaging.storage.hbase_scan import keys_with_sizes, read
from messaging.storage.hbase_writes import Writes
from messaging.storage.seam import StoreDamagedError, TakenOverError
from tuff.hbase_gateway import Gateways

log = logging.getLogger(__name__)

TRIM_SLOTS = 64  # commits between two deletions of old ones
TRIM_BYTES = 32 << 20  # bytes of them
CLAIM_KEPT_MS = 30 * 86_400_000  # a replaced server that stands still for longer is started anew


class OwnClaims:
    """What a server knows of its claims, from one opening of the store to the next.

    A claim in doubt may be in the journal, and whoever made it need not have seen it there.
    """

    def __init__(self) -> None:
        self.tokens: set[bytes] = set()  # of all claims, those in doubt too
        # The first that was the newest commit: all slots behind it are ours, until somebody takes
        # the tables over, and who held them once takes nothing back. None: there was none.
        self.held_since: int | None = None

    def hold(self, number: int) -> None:
        """The claim in this slot is the newest commit."""
        if self.held_since is None:
            self.held_since = number


class _Slot(NamedTuple):
    """A slot of the journal as it was found."""

    number: int
    cell: bytes


class _Old(NamedTuple):
    """What a slot of ours takes up in the journal."""

    number: int
    rows: list[bytes]
    size_bytes: int


class Commits:
    """The journal of one prefix, for one thread; any may call `require_owned`."""

    def __init__(
        self,
        gateways: Gateways,
        writes: Writes,
        prefix: str,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._gateways = gateways
        self._writes = writes
        self._prefix = prefix
        self._table = (prefix + JOURNAL).encode()
        self._token = secrets.token_bytes(journal.TOKEN_SIZE)
        self._now_ms = now_ms
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._old: deque[_Old] = deque()
        self.number = 0
        self.timestamp_ms = 0

    def claim(self, own: OwnClaims, put: Callable[[journal.Rows, int], None]) -> None:
        """Take the next slot, so that no commit of anybody before us can come any more. `put` puts
        rows with a time; `own`: this server's claims so far, and this one joins them.

        Raises: StoreError, TakenOverError.
        """
        newest = self._take_over(own)
        if newest is not None:
            put(self._require_missing(newest), newest.timestamp_ms)
        # This second one says that everything is in the tables, so what is older may go.
        self.add({}, first=self.number + 2)
        log.info("took the tables %s* over at commit %d", self._prefix, self.number)

    def _take_over(self, own: OwnClaims) -> journal.Commit | None:
        """Take the slot behind the newest commit, and give that. Nothing is done in between but
        reading it: whoever still writes takes one slot after the other, and would win each."""
        own.tokens.add(self._token)
        while True:
            newest, commit = self._newest(), None
            if newest is not None:
                try:
                    commit = self._commit(newest)
                except StoreDamagedError:
                    if self._newest() == newest:
                        raise
                    continue  # its chunks went, as later ones came
                self._require_untaken(newest.number, commit, own)
                self.number, self.timestamp_ms = newest.number, commit.timestamp_ms
            # A slot is also empty where it was deleted, as many were taken since we looked.
            if self._take({}, first=commit.first if commit else 1) and self._is_newest():
                own.hold(self.number)
                return commit

    def _require_untaken(self, number: int, newest: journal.Commit, own: OwnClaims) -> None:
        if newest.token in own.tokens:
            own.hold(number)
        elif own.held_since is not None:
            raise TakenOverError(
                f"another server, {newest.owner}, has taken the tables {self._prefix}* over; stop "
                "one of the two"
            )

    def _is_newest(self) -> bool:
        newest = self._newest()
        return newest is not None and newest.number == self.number

    def _require_newest(self) -> None:
        newest = self._newest()
        if newest is not None and newest.number > self.number:
            raise self._taken_over()

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(f"another server has taken the tables {self._prefix}* over")

    def add(self, rows: journal.Rows, *, first: int) -> None:
        """Commit; all rows of the slots before `first` are in the tables.

        Raises:
            TakenOverError: it is not committed, and never will be.
            StoreError: nobody knows.
        """
        if not self._take(rows, first=first):
            raise self._taken_over()
        old_count = sum(old.number < first for old in self._old)
        old_bytes = sum(old.size_bytes for old in self._old if old.number < first)
        if old_count >= TRIM_SLOTS or old_bytes > TRIM_BYTES:
            self._trim(first)

    def require_owned(self, gateways: Gateways) -> None:
        """Look through these whether anybody else has taken a slot behind ours.

        Raises: TakenOverError; StoreError: nobody can tell now.
        """
        behind = RowRange(JOURNAL, journal.slot_row(self.number + 1), _behind(journal.SLOTS))
        for found in keys_with_sizes(gateways, self._prefix, behind):
            number = journal.slot_number(found.row)
            # Slots that the writer took meanwhile; it learns of the newest one after we do.
            if number > self.number and not self._is_ours(found.row, gateways):
                raise self._taken_over()

    def _is_ours(self, slot: bytes, gateways: Gateways) -> bool:
        found = gateways.call(lambda connection: connection.client.getRow(self._table, slot, {}))
        if not found:  # we deleted it, as many others came behind it
            return journal.slot_number(slot) <= self.number
        with journal_errors(f"commit {journal.slot_number(slot)}"):
            return journal.token_of(found[0].columns[BODY].value) == self._token

    def forget_others(self, own: OwnClaims) -> None:
        """Delete what is left of before our claim, but recent claims by which servers replaced
        each other. Raises: StoreError."""
        assert own.held_since is not None
        chunks = RowRange(JOURNAL, journal.CHUNKS, _behind(journal.CHUNKS))
        slots = RowRange(JOURNAL, journal.SLOTS, journal.slot_row(self.number))
        recent_ms = self._now_ms() - CLAIM_KEPT_MS
        # Only what is older than our claim: whoever takes over now has chunks here, too.
        old = [
            found.row
            for found in keys_with_sizes(self._gateways, self._prefix, chunks)
            if journal.chunk_number(found.row) < self.number
        ]
        old += [
            found.row
            for found in keys_with_sizes(self._gateways, self._prefix, slots)
            if found.size_bytes > journal.CLAIM_BYTES_MAX
            or found.timestamp_ms < recent_ms
            or journal.slot_number(found.row) > own.held_since
        ]
        self._delete(old)

    def _take(self, rows: journal.Rows, *, first: int) -> bool:
        """Write the next slot; False if somebody else did. Raises: StoreError: nobody knows."""
        number = self.number + 1
        timestamp_ms = max(self._now_ms(), self.timestamp_ms + 1)
        commit = journal.Commit(
            token=self._token, timestamp_ms=timestamp_ms, first=first, owner=self._owner, rows=rows
        )
        cell, chunks = journal.pack(commit)
        chunk_rows = [journal.chunk_row(self._token, number, index) for index in range(len(chunks))]
        self._writes.change(
            self._table,
            [(row, {BODY: chunk}) for row, chunk in zip(chunk_rows, chunks, strict=True)],
        )
        row = journal.slot_row(number)
        if not self._writes.put_if_absent(self._table, row, cell):
            return False
        self.number, self.timestamp_ms = number, timestamp_ms
        if rows:
            size_bytes = len(cell) + sum(map(len, chunks))
            self._old.append(_Old(number, [*chunk_rows, row], size_bytes))
        return True

    def _trim(self, first: int) -> None:
        gone = []
        while self._old and self._old[0].number < first:
            gone += self._old.popleft().rows
        self._delete(gone)

    def _delete(self, rows: list[bytes]) -> None:
        self._writes.change(self._table, [(row, None) for row in rows])

    def _newest(self) -> _Slot | None:
        everything = RowRange(JOURNAL, journal.SLOTS, _behind(journal.SLOTS))
        for row, cell in read(self._gateways, self._prefix, [everything], reverse=True):
            return _Slot(journal.slot_number(row), cell)
        return None

    def _require_missing(self, newest: journal.Commit) -> journal.Rows:
        try:
            return self._missing(newest)
        except StoreDamagedError:
            self._require_newest()  # whoever takes the tables over from us deletes what we read
            raise

    def _missing(self, newest: journal.Commit) -> journal.Rows:
        """What may be missing from the tables, of all commits up to the newest, which is the one
        before our claim."""
        number = self.number - 1
        rows: dict[bytes, bytes | None] = {}
        if newest.first < number:
            since = RowRange(JOURNAL, journal.slot_row(newest.first), journal.slot_row(number))
            found = [
                _Slot(journal.slot_number(row), cell)
                for row, cell in read(self._gateways, self._prefix, [since], reverse=False)
            ]
            lacking = number - newest.first - len(found)
            if lacking:
                raise StoreDamagedError(
                    f"HBase's journal table lacks {lacking} of the commits {newest.first} to "
                    f"{number}"
                )
            for slot in found:
                rows.update(self._commit(slot).rows)
        rows.update(newest.rows)
        return rows

    def _commit(self, slot: _Slot) -> journal.Commit:
        with journal_errors(f"commit {slot.number}"):
            token, count = journal.token_of(slot.cell), journal.chunk_count(slot.cell)
            pieces: Mapping[bytes, bytes] = {}
            if count:
                start = journal.chunk_row(token, slot.number, 0)
                behind = journal.chunk_row(token, slot.number, count)
                segment = [RowRange(JOURNAL, start, behind)]
                pieces = dict(read(self._gateways, self._prefix, segment, reverse=False))
            return journal.unpack(slot.cell, [pieces[row] for row in sorted(pieces)])


@contextmanager
def journal_errors(what: str) -> Iterator[None]:
    """Says of what the journal has, and nobody can read, that it is damaged."""
    try:
        yield
    except journal.DamagedJournalError as error:
        raise StoreDamagedError(f"{what} in HBase's journal table can't be read: {error}") from None


def _behind(prefix: bytes) -> bytes:
    return bytes((prefix[0] + 1,))
