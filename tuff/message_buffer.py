"""The message buffer of a transaction: messages wait here until the commit carries them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuff import calls
from tuff.calls import Call
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry

BUFFER_BYTES_MAX = 1 << 20  # bytes in memory; as JSON at most six times that, and a request has 16
MESSAGE_BYTES = 64  # bytes; what a message costs beside its payload, so that empty ones count too


@dataclass(slots=True)
class _Held:
    """The messages of one topic under one write pointer."""

    payloads: list[bytes] = field(default_factory=list)
    ttls_s: list[int | None] = field(default_factory=list)
    is_spilled: bool = False


class MessageBuffer:
    """The messages of one transaction, by topic and write pointer, in their order (protocol §3.2).

    Up to `BUFFER_BYTES_MAX` wait here and travel in the commit. What comes after that is stored at
    once, and the commit only refers to it; so a long transaction holds little in memory.
    """

    def __init__(self) -> None:
        self._size_bytes = 0
        self._by_place: dict[tuple[TopicId, int], _Held] = {}

    def add(
        self, topic: TopicId, pointer: int, payloads: Sequence[bytes], *, ttl_s: int | None
    ) -> list[Call[None]]:
        """Take messages in; answers the calls that store what does not fit, to be sent in order."""
        held = self._by_place.setdefault((topic, pointer), _Held())
        spilled: list[bytes] = []
        for payload in payloads:
            size_bytes = self._size_bytes + _cost_bytes(payload)
            # Once one message of a place is stored, the later ones follow it there: the reference
            # comes after what is inline, so going back to the buffer would overtake it.
            if held.is_spilled or size_bytes > BUFFER_BYTES_MAX:
                held.is_spilled = True
                spilled.append(payload)
            else:
                self._size_bytes = size_bytes
                held.payloads.append(payload)
                held.ttls_s.append(ttl_s)
        return [
            calls.store(topic, batch, pointer=pointer, ttl_s=ttl_s) for batch in _batches(spilled)
        ]

    def entries(self) -> list[PublishEntry]:
        """What the commit carries: of each place its messages, then the reference to the stored."""
        entries: list[PublishEntry] = []
        for (topic, pointer), held in self._by_place.items():
            if held.payloads:
                entries.append(
                    PublishEntry(
                        topic=topic, payloads=held.payloads, ttls_s=held.ttls_s, pointer=pointer
                    )
                )
            if held.is_spilled:
                entries.append(PublishEntry(topic=topic, payloads=(), pointer=pointer))
        return entries


def _cost_bytes(payload: bytes) -> int:
    return len(payload) + MESSAGE_BYTES


def _batches(payloads: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size_bytes = 0
    for payload in payloads:
        size_bytes += _cost_bytes(payload)
        if batch and size_bytes > BUFFER_BYTES_MAX:
            yield batch
            batch, size_bytes = [], _cost_bytes(payload)
        batch.append(payload)
    if batch:
        yield batch
