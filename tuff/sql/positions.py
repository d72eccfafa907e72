"""The position of a consumer in the user's database, as flows: one row in the transaction that
processes a batch.

    table tuff_positions := name, position

`name` is that of the topic and the consumer, `position` the 40 hex digits of a message id.
"""

from functools import partial
from typing import Any

from tuff.flows import Flow, hook
from tuff.protocol.ids import MessageId, TopicId
from tuff.sql.database import Decider, SqlConnection, checked_name
from tuff.sql.dialects import POSITION_NAME_LENGTH_MAX, POSITIONS


class SqlPositions:
    """The position of the consumer `name` in a topic. Belongs to one thread or task."""

    def __init__(
        self, decider: Decider[Any], connection: SqlConnection, topic: TopicId, name: str
    ) -> None:
        self._decider = decider
        self._connection = connection
        self._key = f"{topic}/{checked_name(name)}"
        self._is_stored = False
        assert "'" not in self._key, "no topic has such a name"
        if len(self._key) > POSITION_NAME_LENGTH_MAX:
            raise ValueError(f"the names of the topic and the consumer are too long: {self._key}")

    def load(self) -> Flow[MessageId | None]:
        """The position; it stays locked until the transaction ends. None: there is none yet."""
        lock = self._decider.database.dialect.for_update
        select = f"SELECT position FROM {POSITIONS} WHERE name = '{self._key}'{lock}"
        found = yield from self._decider.explaining(hook(partial(self._connection.fetch, select)))
        self._is_stored = bool(found)
        return MessageId.from_hex(found[0]) if found else None

    def save(self, id: MessageId) -> Flow[None]:
        """Store it with the rows of the transaction. Of two consumers with this name that both
        store the first position, the second one fails here, and reads again."""
        if self._is_stored:
            statement = f"UPDATE {POSITIONS} SET position = '{id.hex()}' WHERE name = '{self._key}'"
        else:
            statement = (
                f"INSERT INTO {POSITIONS} (name, position) VALUES ('{self._key}', '{id.hex()}')"
            )
        yield from hook(partial(self._connection.execute, statement))
