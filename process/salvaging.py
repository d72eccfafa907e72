"""A new data directory with what is whole of both stores: `tuff salvage` (promise 8).

The transaction files say first what they can prove; with that every row is decided; and what the
rows prove and deny in turn ends up in the new transaction files.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from messaging.check import StoreAccount, check_store
from messaging.runs import first_whole
from messaging.salvage import Ending, Salvage, Salvaged, begin_store
from messaging.storage.leveldb import LevelDbTable
from process.checks import Data, check, lost_commits, recorded
from process.new_directory import new_directory
from tuff.disk.findings import Decision, Finding
from tx.records import EndedState
from tx.salvage import Proven, Rest, finish, prove, write_files


@dataclass(frozen=True, slots=True)
class Account:
    """How many rows of which table were kept, what was lost, and what damage left to decide."""

    kept: Counter[str]
    lost: list[Finding]
    decided: list[Decision]


def salvage(data: Data, target: Path, *, now_ms: int, new_store_id: Callable[[], str]) -> Account:
    """Write what is whole to a new directory, which is there whole or not at all. Blocks.

    Raises:
        NotNewError: the new directory holds something.
        NewerFilesError: a newer version wrote some of it. (A row of one is a StoreError.)
        OSError, StoreError: something can't be read or written.
    """
    with new_directory(target) as part:
        return _write(data, part, now_ms=now_ms, new_store_id=new_store_id)


def _write(data: Data, part: Path, *, now_ms: int, new_store_id: Callable[[], str]) -> Account:
    proven = _prove(data, now_ms=now_ms)
    rows = _salvage_rows(data, part, proven, now_ms=now_ms, new_store_id=new_store_id)
    _, findings = check(Data.below(part, None), now_ms=now_ms)
    assert not findings, f"what was written is not whole: {findings}"
    decided = [*proven.decided, *rows.decided, *_hidden(rows)]
    missing = () if data.has_messages else lost_commits(StoreAccount(), proven.state)
    return Account(rows.kept, [*proven.lost, *rows.lost, *missing], decided)


def _prove(data: Data, *, now_ms: int) -> Proven:
    mark = None
    if data.has_messages:
        mark = recorded(check_store(data.messages, now_ms=now_ms))
    return prove(data.snapshots, mark)


def _salvage_rows(
    data: Data, part: Path, proven: Proven, *, now_ms: int, new_store_id: Callable[[], str]
) -> Salvaged:
    store = LevelDbTable(part / "messages", first_whole=first_whole)
    try:
        ending = cache(partial(_ending, proven))
        rows = Salvage(data.messages, store, ending=ending) if data.has_messages else None
        account = Salvaged() if rows is None else rows.run()
        store_id, highest = _write_files(
            part, proven, account, now_ms=now_ms, new_store_id=new_store_id
        )
        facts = replace(account.facts, store_id=store_id, highest_pointer=highest)
        if rows is None:
            begin_store(store, facts, proven.last_published)
        else:
            rows.finish(facts, proven.last_published)
    finally:
        store.close()
    return account


def _write_files(
    part: Path,
    proven: Proven,
    rows: Salvaged,
    *,
    now_ms: int,
    new_store_id: Callable[[], str],
) -> tuple[str | None, int]:
    """Write the transaction files; their store's id, and the highest pointer they reserve."""
    highest = max(rows.highest_pointer, rows.facts.highest_pointer)
    store_id = proven.store_id or rows.facts.store_id
    if store_id is None and not highest:
        return None, 0  # there never was a transaction
    rest = Rest(rows.settled, rows.hidden, highest)
    image = finish(proven, rest, now_ms=now_ms)
    store_id = store_id or new_store_id()
    write_files(part / "snapshots", image, store_id=store_id, now_ms=now_ms)
    return store_id, image.highest_reserved


def _ending(proven: Proven, pointer: int) -> Ending:
    ended = proven.ended_as(pointer)
    if ended is not None:
        return Ending.COMMITTED if ended is EndedState.COMMITTED else Ending.NOT_COMMITTED
    if proven.is_open(pointer):
        # Of files that lack their end, it may have committed since.
        return Ending.NOT_COMMITTED if proven.is_whole else Ending.UNKNOWN
    return Ending.FORGOTTEN if proven.is_forgotten(pointer) else Ending.UNKNOWN


def _hidden(rows: Salvaged) -> list[Decision]:
    reason = "its commit is not proven: its rows are hidden from readers in a snapshot"
    return [Decision(f"transaction {pointer}", reason) for pointer in sorted(rows.hidden)]
