"""Messages that were set aside (decision 0045 §2), for `tuff salvage`.

Their rows are rolled back, and an index row says that they return when their transaction
commits. If its commit is proven, salvage keeps that index row, and the next server returns the
messages.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from messaging.log.rows_by_transaction import IndexedRange
from messaging.model.row_format import MessageRow, offset_after
from tuff.protocol.ids import Offset


@dataclass
class _Aside:
    entry: IndexedRange
    found: list[Offset] = field(default_factory=list)  # ascending


class AsideRows:
    """The index rows to keep. It is told of all index rows before the first message."""

    def __init__(self) -> None:
        self._by_pointer: defaultdict[tuple[bytes, int], list[_Aside]] = defaultdict(list)

    def add(self, entry: IndexedRange) -> None:
        """Messages of a transaction whose commit is proven."""
        self._by_pointer[entry.prefix, entry.pointer].append(_Aside(entry))

    def note_message(self, prefix: bytes, row: MessageRow, offset: Offset) -> None:
        """A row of a transaction is kept. One that is rolled back may return."""
        assert row.tx_pointer is not None, "it is of a transaction"
        for aside in self._by_pointer.get((prefix, -row.tx_pointer), ()):
            if aside.entry.first <= offset <= aside.entry.last:
                aside.found.append(offset)

    def __iter__(self) -> Iterator[IndexedRange]:
        """The index rows, each for neighbouring messages that were found."""
        for aside in (each for owned in self._by_pointer.values() for each in owned):
            yield from _neighbours(aside)


def _neighbours(aside: _Aside) -> Iterator[IndexedRange]:
    first: Offset | None = None
    for offset, following in zip(aside.found, [*aside.found[1:], None], strict=True):
        first = first or offset
        if following != offset_after(offset):
            yield replace(aside.entry, first=first, last=offset)
            first = None
