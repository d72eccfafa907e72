"""A server of a cluster, and what the next owner of a topic has to know of the one before."""

from dataclasses import dataclass

from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT, Offset


@dataclass(frozen=True, slots=True)
class Identity:
    """A server of a cluster since its start. No other start of any server has the same, and each
    has a journal of its own."""

    cluster_id: str
    server_id: str  # without a colon
    incarnation: int


@dataclass(frozen=True, slots=True)
class Floor:
    """What the next owner of the topics of a server must know of that server: the highest offset
    that it assigned, the highest timestamp in ms of its cells in HBase, and the longest life in ms
    of a transaction there. With a lower offset or timestamp, rows of the next owner would come
    before rows that readers have seen, or be hidden by older cells. With a shorter life of
    transactions, retention would drop payloads of live messages.

    Raises ValueError for numbers out of range.
    """

    offset: Offset
    cell_ms: int
    longest_transaction_ms: int

    def __post_init__(self) -> None:
        if not (
            0 <= self.offset.timestamp_ms < TIMESTAMP_LIMIT
            and 0 <= self.offset.seq_id < SEQ_ID_LIMIT
            and 0 <= self.cell_ms < TIMESTAMP_LIMIT
            and 0 <= self.longest_transaction_ms < TIMESTAMP_LIMIT
        ):
            raise ValueError(f"a number of {self} is out of range")

    def raised_to(self, other: "Floor") -> "Floor":
        """The higher one of the offsets, and likewise of the other numbers."""
        return Floor(
            max(self.offset, other.offset),
            max(self.cell_ms, other.cell_ms),
            max(self.longest_transaction_ms, other.longest_transaction_ms),
        )


NO_FLOOR = Floor(Offset(0, 0), cell_ms=0, longest_transaction_ms=0)
