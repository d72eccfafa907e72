"""What a stream tells the server of itself: how far it has read, and what must not expire.

Both are told when a batch is planned, with the place where it starts: all before that is written,
and noted by Spark. They are reports: a stream goes on from its checkpoint, and from nothing else.
"""

from time import perf_counter
from typing import TYPE_CHECKING

from pyspark_tuff.offsets import BEGINNING, Position, Positions
from pyspark_tuff.options import ReadOptions
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from tuff.client import Client

RENEWALS_PER_AGE = 3  # so that a hold outlives a batch that takes long, and a restart


class Keeping:
    """The named positions and the holds of one query. Belongs to one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._told: dict[TopicId, Position] = {}
        self._held: dict[TopicId, tuple[Position, float]] = {}

    def keep(self, client: "Client", begin: Positions) -> None:
        """Tell where the next batch begins, as far as that is new."""
        for topic, position in begin.items():
            self._report(client, topic, position)
            self._hold(client, topic, position)

    def _report(self, client: "Client", topic: TopicId, position: Position) -> None:
        name = self._options.position_name
        if name is None or position.id == BEGINNING or self._told.get(topic) == position:
            return
        client.topics.set_position(topic, name, position.id)
        self._told[topic] = position

    def _hold(self, client: "Client", topic: TopicId, position: Position) -> None:
        name, age_s = self._options.hold_name, self._options.hold_max_age_s
        held, renewed_s = self._held.get(topic, (None, 0.0))
        is_fresh = perf_counter() - renewed_s < age_s / RENEWALS_PER_AGE
        if name is None or (held == position and is_fresh):
            return
        client.topics.hold(topic, name, position.id or 0, max_age=age_s)
        self._held[topic] = position, perf_counter()
