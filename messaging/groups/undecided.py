"""How transactions ended that published records to the log of a group."""

from collections.abc import Mapping

from messaging.groups.state import DamagedRecordOfGroupError
from messaging.read.poll import Poll, Polls
from messaging.read.visibility import Undecided, Verdict, visibility
from messaging.transactions_interface import TransactionView
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.transaction import Transaction


async def ended_transactions(
    group_log: TopicId,
    rows: Mapping[int, MessageId],
    polls: Polls,
    transactions: TransactionView,
) -> dict[int, bool]:
    """Whether each transaction that has ended committed; `rows` has the id of the first record in
    the log of each, by its write pointer. Raises: TransactionsUnavailableError."""
    if not rows:
        return {}
    snapshot = await transactions.snapshot()
    ended = [each for each in rows if visibility(each, snapshot) is not Verdict.HOLD]
    if not ended:
        return {}
    committed = await _visible(polls, group_log, [rows[each] for each in ended], snapshot)
    return {each: rows[each] in committed for each in ended}


async def _visible(
    polls: Polls, group_log: TopicId, rows: list[MessageId], snapshot: Transaction
) -> set[MessageId]:
    """Those of these messages of the log that a snapshot sees. The rows say it: the list of
    invalid transactions forgets those whose rows are marked."""
    found: set[MessageId] = set()
    start, last, inclusive = min(rows), max(rows), True
    while True:
        result = await polls.poll(
            group_log,
            Poll(
                start=start,
                inclusive=inclusive,
                through=last,
                transaction=snapshot,
                undecided=Undecided.SKIP,
            ),
        )
        found.update(MessageId.from_bytes(each) for each, _ in result.items)
        start, inclusive = MessageId.from_bytes(result.next_id), False
        if result.caught_up or start >= last:
            return found


def damaged_record(
    group_log: TopicId, message_id: bytes, error: DamagedRecordOfGroupError
) -> DamagedRecordError:
    """The refusal to read a log that has this record."""
    return DamagedRecordError(
        f"the log {group_log} can't be read at {message_id.hex()}: {error}",
        members={"id": message_id.hex(), "next": None},
    )
