"""Whether the transaction files and the message store beside them are of one store and one age
(decision 0033).

A restore from different backups mixes ages: older transaction files lack commits whose messages are
there, and older messages lack what a commit published. The service then stays down.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from tuff.protocol.ids import Offset
from tx.file_headers import DamagedFilesError, KnownFile, damaged
from tx.outcomes import EndedState, OpenTransaction, Outcome
from tx.state import TransactionState

BEFORE_ALL = Offset(0, 0)  # of messages
_ADVICE = (
    "put files of one backup together, and start the transaction service again, or use "
    "`tuff salvage`"
)


@dataclass(frozen=True, slots=True)
class RecordedFiles:
    """The record that the message store has of the transaction files beside it.

    `store_id` is that of both, empty where it has none; it is stored before the files are made.
    `highest_reserved` is the highest pointer that the files reserved, 0 where it never saw any.
    `seen_lsn` is the edit up to which they were durable at its last write, None where it does not
    say. `last` is the highest offset that it assigned. `carried` are the pointers of its rows that
    are neither ended nor rolled back, None where they are not to be checked.
    """

    store_id: str
    highest_reserved: int = 0
    seen_lsn: int | None = None
    last: Offset = BEFORE_ALL
    carried: AbstractSet[int] | None = None

    @property
    def has_seen_files(self) -> bool:
        """Whether there were transaction files, so that missing ones are damage."""
        return self.highest_reserved > 0


class OlderMessagesError(DamagedFilesError):
    """The message store lacks messages that these files know as committed."""


def require_one_age(
    directory: Path,
    state: TransactionState,
    newest: KnownFile,
    files: list[KnownFile],
    recorded: RecordedFiles | None,
) -> None:
    """Check files that were replayed to this state against each other and against `recorded`.

    Raises:
        DamagedFilesError: they belong to different stores, or one of the two stores is older.
    """
    store_id = newest.header.store_id
    for known in files:
        if known.header.store_id != store_id:
            raise damaged(known.path.name, 0, f"it belongs to another store than {store_id}")
    if recorded is None:
        return
    if recorded.store_id not in ("", store_id):
        raise DamagedFilesError(
            f"{directory} belongs to store {store_id}, and the message store to "
            f"{recorded.store_id}; {_ADVICE}"
        )
    if state.highest_reserved < recorded.highest_reserved:
        raise DamagedFilesError(
            f"{directory} knows pointers up to {state.highest_reserved}, and pointers up to "
            f"{recorded.highest_reserved} were reserved: the transaction files are older; {_ADVICE}"
        )
    if recorded.seen_lsn is not None and state.lsn < recorded.seen_lsn:
        raise DamagedFilesError(
            f"{directory} knows edits up to {state.lsn}, and the message store has seen "
            f"{recorded.seen_lsn}: the transaction files are older; {_ADVICE}"
        )
    if recorded.carried is not None:
        _check_messages(state, recorded.carried, recorded)


def _check_messages(
    state: TransactionState, carried: AbstractSet[int], recorded: RecordedFiles
) -> None:
    """Raises: DamagedFilesError: the messages are older than the transaction files.

    Rows of a transaction with an unknown outcome would be shown as committed. The index rows of a
    commit stay until a write batch deletes them, and that batch records that it has seen the
    commit."""
    for pointer in carried:
        if not is_known(state, pointer):
            raise DamagedFilesError(
                f"the message store has undecided rows of transaction {pointer}, whose "
                "outcome is not known: the messages are older than the transaction files; "
                f"{_ADVICE}"
            )
    for outcome in commits_without_rows(state, carried, seen=recorded.seen_lsn, last=recorded.last):
        raise OlderMessagesError(
            f"transaction {outcome.transaction_id} committed messages to "
            f"{', '.join(outcome.topics)} that the message store does not have: it is older "
            f"than the transaction files; {_ADVICE}"
        )
    for opened in prepared_without_rows(state, carried, seen=recorded.seen_lsn):
        raise OlderMessagesError(
            f"transaction {opened.transaction_id} is prepared with messages that the message store "
            f"does not have: it is older than the transaction files; {_ADVICE}"
        )


def prepared_without_rows(
    state: TransactionState, carried: AbstractSet[int], *, seen: int | None
) -> Iterator[OpenTransaction]:
    """Prepared transactions whose message rows are missing."""
    for opened in state.prepared:
        prepared = opened.prepared
        if prepared is None or seen is None or prepared.lsn <= seen:
            continue
        if prepared.published and carried.isdisjoint(opened.pointers):
            yield opened


def commits_without_rows(
    state: TransactionState, carried: AbstractSet[int], *, seen: int | None, last: Offset
) -> Iterator[Outcome]:
    """Commits whose messages are not all in the message store, the newest first. The store had seen
    edits up to `seen` and assigned offsets up to `last`; its undecided rows carry these pointers.
    """
    for outcome in state.outcomes.newest_first():
        if seen is None or outcome.lsn <= seen:
            return
        is_there = not outcome.topics or not carried.isdisjoint(outcome.pointers)
        is_there = is_there and all(detail.last <= last for detail in outcome.published)
        if outcome.state is EndedState.COMMITTED and not is_there:
            yield outcome


def is_known(state: TransactionState, pointer: int) -> bool:
    """Whether the outcome of a pointer is known, or will be once the service is up: the restart
    makes reserved pointers invalid."""
    is_reserved = any(block.start <= pointer < block.stop for block in state.blocks)
    return is_reserved or state.maybe_find(pointer) is not None
