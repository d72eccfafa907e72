"""What a read gives, and a poll: the messages, and where and why it ended."""

from dataclasses import dataclass

from messaging.page import EMPTY_PAGE, Page
from messaging.visibility import HeldRow
from tuff.protocol.ids import MessageId, Place


@dataclass(slots=True, kw_only=True)
class Reading:
    """What was read, and where to go on: `next_id` is an exclusive start, as 20 bytes.

    `held` is the row that holds this reader back. `finished` is False when the read stopped only
    because it had passed over so many rows. `whole_from`, where it is not None, is a place from
    which on the page is all that there is up to what is served, and nothing but payloads: no ending
    and no rollback can change what it says.
    """

    next_id: bytes
    page: Page = EMPTY_PAGE
    caught_up: bool = False
    held: HeldRow | None = None
    finished: bool = True
    whole_from: Place | None = None

    @property
    def held_by(self) -> int | None:
        """The pointer of the row that holds this reader back."""
        return None if self.held is None else self.held.pointer

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload, taken apart anew each time."""
        return self.page.messages()


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """What a read delivers. `next_id`, as an exclusive start, leads to exactly what this reader has
    not been handed; `blocked_by` is the id of the transaction that holds it back, while that is in
    progress."""

    page: Page
    generation: int
    next_id: bytes
    caught_up: bool
    blocked_by: int | None
    expired: bool

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload, taken apart anew each time."""
        return self.page.messages()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Where a topic begins and ends for a reader."""

    generation: int
    earliest: MessageId | None
    end: MessageId | None
    blocked_by: int | None
