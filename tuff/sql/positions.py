"""The positions of a consumer group in the user's database, as flows: one row for each partition.

    table tuff_positions := name, position, owner

`name` is that of the partition and the group, `position` the 40 hex digits of a message id, and
`owner` the member that took the partition last (decision 0059).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tuff.consumer_options import BatchEnd, ConsumerPlan
from tuff.errors import WrongStateError
from tuff.flows_and_repeated_calls import Flow, hook
from tuff.protocol.errors import PartitionNotAssignedError
from tuff.protocol.ids import FIRST_ID, MessageId, PartitionId
from tuff.sql.database import Decider, SqlBlock, SqlConnection
from tuff.sql.dialects import POSITIONS, Fact


class GroupPositions:
    """The positions of a consumer group in the user's database, for one member. Belongs to one
    thread or task.

    A row has the id of the member that took its partition last, its *owner*. A member takes a
    partition that was assigned to it by a transaction of its own, and its blocks commit only while
    it is the owner. So a block of the member before either has committed then, and its position is
    seen here, or it can't commit any more.
    """

    def __init__(self, decider: Decider[Any], plan: ConsumerPlan, member_id: str) -> None:
        self.decider = decider
        self._group = plan.group
        self._owner = member_id
        # What the row of a partition may say: the outcome of the last block may not be known.
        self._expected: dict[PartitionId, set[MessageId]] = {}
        self._connection: tuple[Any, ...] = ()

    def use(self, connection: Collection[Any]) -> None:
        """Let transactions that have no connection of their own use this one from now on."""
        self._connection = tuple(connection)

    def block(self, connection: Collection[Any]) -> SqlBlock:
        """A block of the user's connection. Raises: WrongStateError: it is none, or unsuitable."""
        found = tuple(connection) or self._connection
        if len(found) != 1:
            raise WrongStateError(
                "a consumer with a database takes its connection, as consumer.run(process, "
                f"connection) or consumer.transactions(connection), and not {len(found)} of them"
            )
        return self.decider.database.joined(found[0])

    def take(
        self, starts: Mapping[PartitionId, MessageId | None]
    ) -> Flow[dict[PartitionId, MessageId]]:
        """Become the owner of partitions; returns their positions. `starts`: where the group begins
        in those without a row. Those whose row another transaction has locked are left out."""
        taken: dict[PartitionId, MessageId] = {}
        for partition, start in starts.items():
            taking = partial(self._take, partition, start or FIRST_ID)
            try:
                found = yield from self.decider.on_another_connection(taking)
            except Exception as error:
                fact = self.decider.database.dialect.fact_of(error)
                if fact not in (Fact.OPEN, Fact.DUPLICATE):
                    raise
                continue
            taken[partition] = found
            self._expected[partition] = {found}
        return taken

    def _take(
        self, partition: PartitionId, start: MessageId, connection: SqlConnection
    ) -> Flow[MessageId]:
        key = self._key(partition)
        # In this order, so that it is right also if each statement commits by itself.
        update = f"UPDATE {POSITIONS} SET owner = '{self._owner}' WHERE name = '{key}'"
        yield from hook(partial(connection.execute, update))
        found = yield from hook(partial(connection.fetch, self._select(key)))
        if not found:
            insert = (
                f"INSERT INTO {POSITIONS} (name, position, owner) "
                f"VALUES ('{key}', '{start.hex()}', '{self._owner}')"
            )
            yield from hook(partial(connection.execute, insert))
        yield from hook(connection.commit)
        return MessageId.from_hex(found[0]) if found else start

    def save(self, connection: SqlConnection, end: object) -> Flow[None]:
        """Store the end of a batch with the rows of the transaction. The position stays locked
        until that has ended.

        Raises: PartitionNotAssignedError: another member has taken the partition.
        """
        assert isinstance(end, BatchEnd), "a consumer commits the ends of its batches"
        key = self._key(end.partition)
        select = self._select(key) + self.decider.database.dialect.for_update
        found = yield from self._fetched(connection, select)
        positions = {MessageId.from_hex(each) for each in found}
        if not positions or not positions <= self._expected[end.partition]:
            raise PartitionNotAssignedError(
                f"another member of the group has taken {end.partition}, so this transaction is "
                "rolled back"
            )
        if max(positions) >= end.next_id:
            raise WrongStateError(
                f"a transaction of this batch of {end.partition} has committed; poll again, since "
                "the consumer continues behind what has committed"
            )
        update = f"UPDATE {POSITIONS} SET position = '{end.next_id.hex()}' WHERE name = '{key}'"
        yield from hook(partial(connection.execute, update))
        self._expected[end.partition] = positions | {end.next_id}

    def _fetched(self, connection: SqlConnection, select: str) -> Flow[Sequence[str]]:
        """The position as it is now; none if a transaction with a snapshot can't see it."""
        try:
            found: Sequence[str] = yield from hook(partial(connection.fetch, select))
        except Exception as error:
            if self.decider.database.dialect.fact_of(error) is not Fact.CHANGED:
                raise
            return []
        return found

    def _select(self, key: str) -> str:
        return f"SELECT position FROM {POSITIONS} WHERE name = '{key}' AND owner = '{self._owner}'"

    def _key(self, partition: PartitionId) -> str:
        return f"{partition}/{self._group.name_for(partition)}"
