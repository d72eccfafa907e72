"""The messages of a reply, and the forms in which they go out (protocol §3.4, §4).

`Columns` holds the ids and payloads of messages as they were read: as lists (`Listed`), and as
parts of packed rows (`Stretch`). The Arrow form takes all payloads of a stretch at once, and no
object is made for a message. Lists are materialised on demand. A `Page` adds the encoded replies,
each of which is made once; readers that ask for the same get the same page.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from messaging.storage.packed_rows import PackedRows
from messaging.storage.rows import OFFSET_SIZE, SEQ_SIZE
from tuff.protocol import avro
from tuff.protocol.errors import NotAcceptableError
from tuff.protocol.json_forms import payload_to_json

NO_PAYLOAD = bytes(OFFSET_SIZE)  # the second half of the id of an inline message


class IdParts(NamedTuple):
    """What stands in ids before and behind the offset at the end of a row's key."""

    front: bytes
    back: bytes


OF_MESSAGES = IdParts(b"", NO_PAYLOAD)


@dataclass(frozen=True, slots=True)
class Listed:
    """Messages one by one."""

    ids: list[bytes]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))

    def sizes(self) -> bytes:
        """The size of each payload, in four bytes, big-endian."""
        return struct.pack(f">{len(self.payloads)}I", *map(len, self.payloads))

    def joined_ids(self) -> bytes:
        return b"".join(self.ids)

    def joined_payloads(self) -> bytes | memoryview:
        return b"".join(self.payloads)

    def lists(self) -> tuple[list[bytes], list[bytes]]:
        return self.ids, self.payloads

    @property
    def last_id(self) -> bytes:
        return self.ids[-1]

    def first(self, count: int) -> "Listed":
        return Listed(self.ids[:count], self.payloads[:count])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbours among packed rows. Their payloads lie between two bytes of the stored value. All
    of them are of one millisecond."""

    run: PackedRows
    start: int
    stop: int
    start_byte: int
    stop_byte: int
    parts: IdParts

    @classmethod
    def of(cls, run: PackedRows, start: int, stop: int, parts: IdParts) -> "Stretch":
        if start == 0 and stop == run.length:
            return cls(run, start, stop, run.payloads_at, len(run.value), parts)
        bounds = run.bounds()
        return cls(run, start, stop, bounds[start], bounds[stop], parts)

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def size_bytes(self) -> int:
        return self.stop_byte - self.start_byte

    def sizes(self) -> bytes:
        return self.run.sizes(self.start, self.stop)

    def joined_ids(self) -> bytes:
        before, seqs, back = self._ids()
        return before + (back + before).join(seqs) + back

    def joined_payloads(self) -> bytes | memoryview:
        return memoryview(self.run.value)[self.start_byte : self.stop_byte]

    def lists(self) -> tuple[list[bytes], list[bytes]]:
        before, seqs, back = self._ids()
        bounds = self.run.bounds()[self.start : self.stop + 1]
        payloads = [self.run.value[start:stop] for start, stop in pairwise(bounds)]
        return [before + seq + back for seq in seqs], payloads

    def first(self, count: int) -> "Stretch":
        return self.of(self.run, self.start, self.start + count, self.parts)

    @property
    def last_id(self) -> bytes:
        offset = (self.run.number + self.stop - 1).to_bytes(OFFSET_SIZE, "big")
        return self.parts.front + offset + self.parts.back

    def _ids(self) -> tuple[bytes, Sequence[bytes], bytes]:
        offset = (self.run.number + self.start).to_bytes(OFFSET_SIZE, "big")
        first = int.from_bytes(offset[-SEQ_SIZE:], "big")
        front, back = self.parts
        return front + offset[:-SEQ_SIZE], _all_seqs()[first : first + len(self)], back


@cache
def _all_seqs() -> list[bytes]:
    # About three megabytes, for readers of packed rows: half of the cost of making an id anew.
    return [number.to_bytes(SEQ_SIZE, "big") for number in range(1 << 8 * SEQ_SIZE)]


class Columns:
    """Ids and payloads in order; grows at its end, and is cut there."""

    __slots__ = ("_count", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Listed | Stretch] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def last_id(self) -> bytes:
        return self.pieces[-1].last_id

    def add(self, ids: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        if not ids:
            return
        if not self.pieces or not isinstance(self.pieces[-1], Listed):
            self.pieces.append(Listed([], []))
        piece = self.pieces[-1]
        assert isinstance(piece, Listed)
        piece.ids.extend(ids)
        piece.payloads.extend(payloads)
        self._count += len(ids)

    def add_stretch(self, stretch: Stretch) -> None:
        self.pieces.append(stretch)
        self._count += len(stretch)

    def cut(self, count: int) -> None:
        """Keep no more than the first ones."""
        while self._count > count:
            piece = self.pieces.pop()
            self._count -= len(piece)
            if self._count < count:
                self.pieces.append(piece.first(count - self._count))
                self._count = count

    def size_bytes(self) -> int:
        """The bytes of all payloads."""
        return sum(piece.size_bytes for piece in self.pieces)

    def lists(self) -> tuple[list[bytes], list[bytes]]:
        """All 20-byte ids, and all payloads."""
        if len(self.pieces) == 1:
            return self.pieces[0].lists()
        ids: list[bytes] = []
        payloads: list[bytes] = []
        for piece in self.pieces:
            more_ids, more_payloads = piece.lists()
            ids += more_ids
            payloads += more_payloads
        return ids, payloads


class Under(NamedTuple):
    """Messages of a page that stand side by side, and were published under one write pointer."""

    first: int  # the index in the page, and that of the first message behind them
    stop: int
    pointer: int


class Page:
    """An immutable list of messages of one generation of a topic, and the replies that were made of
    it. `under` names those that have a write pointer, in their order."""

    __slots__ = ("_arrow", "_avro", "_columns", "_items", "_json", "under")

    def __init__(self, columns: Columns, under: Sequence[Under] = ()) -> None:
        self._columns: Columns | None = columns
        self._items: Sequence[bytes] | None = None
        self.under = under
        self._arrow: bytes | None = None
        self._avro: bytes | None = None
        self._json: bytes | None = None

    @classmethod
    def of_items(cls, items: Sequence[bytes]) -> "Page":
        """The page of these items of an Avro reply, none of which has a write pointer."""
        page = cls(Columns())
        page._columns, page._items = None, items
        return page

    def __len__(self) -> int:
        return len(self.items if self._columns is None else self._columns)

    @property
    def columns(self) -> Columns:
        """All 20-byte ids, and all payloads."""
        if self._columns is None:
            pairs = [avro.decode_message(item) for item in self.items]
            self._columns = Columns()
            self._columns.add([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        return self._columns

    @property
    def items(self) -> Sequence[bytes]:
        """The messages as items of the Avro reply."""
        if self._items is None:
            self._items = avro.encode_messages(*self.columns.lists())
        return self._items

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload."""
        return [*zip(*self.columns.lists(), strict=True)]

    def avro(self) -> bytes:
        """The body of an Avro reply."""
        if self._avro is None:
            self._avro = (
                avro.encode_items(self.items)
                if self._items is not None
                else avro.encode_columns(*self.columns.lists())
            )
        return self._avro

    def json(self) -> bytes:
        """The body of a JSON reply, which is what `json.dumps` makes of it."""
        if self._json is None:
            self._json = f"[{', '.join(map(_json_of, *self.columns.lists()))}]".encode("ascii")
        return self._json

    def arrow(self, *, generation: int) -> bytes:
        """The body of an Arrow reply. Raises: NotAcceptableError."""
        if self._arrow is None:
            self._arrow = arrow_form()(self.columns, self.under, generation=generation)
        return self._arrow


EMPTY_PAGE = Page(Columns())


@cache
def arrow_form() -> Callable[..., bytes]:
    """What makes the Arrow form. The first call that finds pyarrow takes a tenth of a second.

    Raises:
        NotAcceptableError: pyarrow is not installed where the server runs.
    """
    try:
        from messaging.read.arrow_reply import encode
    except ImportError as error:
        raise NotAcceptableError(
            f"this server has no pyarrow for replies in Arrow ({error}); install "
            "'tuff-messaging[arrow]' where it runs, or ask for JSON or Avro"
        ) from None
    return encode


def _json_of(message_id: bytes, payload: bytes) -> str:
    timestamp_ms = int.from_bytes(message_id[:8], "big")
    form = payload_to_json(payload)
    text = encode_basestring_ascii(form) if isinstance(form, str) else json.dumps(form)
    return f'{{"id": "{message_id.hex()}", "timestamp": {timestamp_ms}, "payload": {text}}}'
