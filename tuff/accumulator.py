"""Which of the messages that were sent one by one go out together, and when; no clock, no thread.

One batch is on its way at a time, so that messages stay in the order in which they were sent. What
comes meanwhile makes the next batch; only who finds nothing on its way waits for company.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tuff.outgoing import BUFFER_BYTES_MAX, MESSAGE_BYTES
from tuff.protocol.errors import BadRequestError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

BATCHES_HELD_MAX = 8  # times `batch_bytes` are held in memory; then who sends has to wait
LINGER_MS_MAX = 60_000  # milliseconds; more is no publisher but a schedule


class _Waiting(NamedTuple, Generic[R]):
    payload: bytes
    receipt: R
    since_s: float


@dataclass(frozen=True, slots=True)
class Batch(Generic[R_co]):
    """Messages of one publish, and for each the receipt that its sender holds."""

    payloads: list[bytes]
    receipts: Sequence[R_co]
    size_bytes: int


class Accumulator(Generic[R]):
    """Messages that wait for a batch, in their order. `claim` says of a receipt whether its message
    is still wanted; whose is not is left out. Times are seconds of any clock that does not step."""

    def __init__(self, *, batch_bytes: int, linger_s: float, claim: Callable[[R], bool]) -> None:
        """Raises: BadRequestError: a number is out of its range."""
        if not 1 <= batch_bytes <= BUFFER_BYTES_MAX:
            raise BadRequestError(
                f"batch_bytes is a number from 1 to {BUFFER_BYTES_MAX}, not {batch_bytes}"
            )
        if not 0 <= linger_s <= LINGER_MS_MAX / 1000:
            raise BadRequestError(
                f"linger_ms is a number from 0 to {LINGER_MS_MAX}, not {linger_s * 1000:g}"
            )
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._claim = claim
        self._waiting: deque[_Waiting[R]] = deque()
        self._waiting_bytes = 0
        self._under_way_bytes = 0
        self._due_count = 0  # of those that wait, so many go without waiting for company
        self.added_count = 0
        self.settled_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits; a batch may be on its way."""
        return not self._waiting

    @property
    def is_full(self) -> bool:
        """Whether what waits fills a batch."""
        return self._waiting_bytes >= self._batch_bytes

    def has_room(self, payload: bytes) -> bool:
        """Whether this one may be added; nothing is too large where nothing else is held."""
        held_bytes = self._waiting_bytes + self._under_way_bytes
        most_bytes = BATCHES_HELD_MAX * self._batch_bytes
        return not held_bytes or held_bytes + _cost_bytes(payload) <= most_bytes

    def add(self, payload: bytes, receipt: R, *, now_s: float) -> None:
        """Take a message in, behind all others."""
        self._waiting.append(_Waiting(payload, receipt, now_s))
        self._waiting_bytes += _cost_bytes(payload)
        self.added_count += 1

    def flush(self) -> None:
        """Have all that waits now go without waiting for company."""
        self._due_count = len(self._waiting)

    def due_in_s(self, *, now_s: float) -> float | None:
        """How long until a batch is due, 0 if one is; None: nothing waits."""
        if not self._waiting:
            return None
        if self._due_count or self.is_full:
            return 0.0
        return max(0.0, self._waiting[0].since_s + self._linger_s - now_s)

    def take(self) -> Batch[R]:
        """The next batch, to be given back by `settled`; empty where nobody wants its messages.

        A message that is larger than a batch goes alone, so that it fails alone.
        """
        payloads: list[bytes] = []
        receipts: list[R] = []
        size_bytes = 0
        while self._waiting:
            payload, receipt, _ = self._waiting[0]
            cost_bytes = _cost_bytes(payload)
            if payloads and size_bytes + cost_bytes > self._batch_bytes:
                break
            self._waiting.popleft()
            self._waiting_bytes -= cost_bytes
            self._due_count = max(0, self._due_count - 1)
            if self._claim(receipt):
                payloads.append(payload)
                receipts.append(receipt)
                size_bytes += cost_bytes
            else:
                self.settled_count += 1
        self._under_way_bytes = size_bytes
        return Batch(payloads, receipts, size_bytes)

    def settled(self, batch: Batch[R]) -> None:
        """It is known what became of a batch."""
        self._under_way_bytes -= batch.size_bytes
        self.settled_count += len(batch.receipts)


def _cost_bytes(payload: bytes) -> int:
    return len(payload) + MESSAGE_BYTES
