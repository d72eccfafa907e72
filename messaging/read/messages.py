"""`Messages`: the messages of one read, from the scan of rows or the tail cache to the reply."""

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from messaging.storage.attributes import decode_attributes
from messaging.storage.packed_rows import PackedSlice
from messaging.storage.rows import OFFSET_SIZE
from tuff.protocol import avro
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.errors import NotAcceptableError
from tuff.protocol.exchange import Form, MediaType
from tuff.protocol.json_forms import attributes_to_json, payload_to_json

NO_PAYLOAD = bytes(OFFSET_SIZE)  # the second half of the id of a message that is a row by itself


class PointerRange(NamedTuple):
    """Neighbours among messages that were published under one write pointer."""

    start: int  # index of the first message
    stop: int  # index behind the last message
    pointer: int  # positive, also when the rows were rolled back


class Joined(NamedTuple):
    """The columns of messages as bytes to join; sizes of payloads have four bytes, big-endian."""

    ids: list[bytes]
    sizes: list[bytes]
    payloads: list[bytes | memoryview]


class Messages:
    """Messages of one generation of a topic, in the order of their ids, in three columns.

        id        20 bytes
        payload   bytes, as they were published
        pointer   the write pointer; `pointers` has it as ranges, since few messages have one

    Few messages have attributes, too: `attributes` has them as stored, by the index of the message.

    A scan appends messages, up to `limit` messages and `bytes_max` bytes of payloads and
    attributes; the first message always fits. The tail cache passes complete columns. Each form of
    the reply is made when nothing is appended any more, and only once: readers that ask for the
    same get the same `Messages`, and so the same bytes.

    Packed rows stay slices of the stored value (`PackedSlice`) until ids and payloads are needed
    one by one. The Arrow form joins slices, so that no object is made for a message.
    """

    __slots__ = ("_count", "_forms", "_ids", "_packed", "_payloads", "attributes", "bytes_max",
                 "limit", "pointers", "size_bytes")  # fmt: skip

    def __init__(self, *, limit: int = 0, bytes_max: int = 0) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.size_bytes = 0  # of all payloads and attributes
        self.pointers: list[PointerRange] = []
        self.attributes: dict[int, bytes] = {}
        self._count = 0
        self._ids: list[bytes] = []
        self._payloads: list[bytes] = []
        # Each with the index in the lists before which it belongs.
        self._packed: list[tuple[int, PackedSlice]] = []
        self._forms: dict[Form, bytes] = {}

    @classmethod
    def of(cls, ids: list[bytes], payloads: list[bytes]) -> "Messages":
        """Complete columns of messages without a write pointer."""
        messages = cls()
        messages._ids, messages._payloads, messages._count = ids, payloads, len(ids)
        return messages

    def __len__(self) -> int:
        return self._count

    @property
    def last_id(self) -> bytes:
        """The id of the last message, of which there is at least one."""
        if self._packed and self._packed[-1][0] == len(self._ids):
            return self._packed[-1][1].last_id
        return self._ids[-1]

    @property
    def room(self) -> int:
        """How many messages may still be appended, by their number."""
        return self.limit - self._count

    def append(
        self,
        message_id: bytes,
        payload: bytes,
        *,
        pointer: int | None = None,
        attributes: bytes | None = None,
    ) -> bool:
        """Append a message; False, and nothing is appended, if it does not fit."""
        size_bytes = len(payload) + len(attributes or b"")
        if self._count and not self._has_room(1, size_bytes):
            return False
        self._ids.append(message_id)
        self._payloads.append(payload)
        if attributes is not None:
            self.attributes[self._count] = attributes
        self._appended(1, size_bytes, pointer)
        return True

    def extend(
        self, ids: Sequence[bytes], payloads: Sequence[bytes], *, pointer: int | None = None
    ) -> int:
        """Append those messages from the beginning that fit, and return their number."""
        size_bytes = sum(map(len, payloads))
        if not self._has_room(len(ids), size_bytes):
            bounds = [*accumulate(map(len, payloads), initial=0)]
            count = self._fitting(bounds)
            ids, payloads, size_bytes = ids[:count], payloads[:count], bounds[count]
        self._ids += ids
        self._payloads += payloads
        self._appended(len(ids), size_bytes, pointer)
        return len(ids)

    def extend_packed(self, packed: PackedSlice, *, pointer: int | None = None) -> int:
        """The same of a slice of packed rows, which is not empty."""
        if not self._has_room(len(packed), packed.size_bytes):
            count = self._fitting(packed.bounds())
            if not count:
                return 0
            packed = packed.first(count)
        self._packed.append((len(self._ids), packed))
        self._appended(len(packed), packed.size_bytes, pointer)
        return len(packed)

    def _has_room(self, count: int, size_bytes: int) -> bool:
        return count <= self.room and self.size_bytes + size_bytes <= self.bytes_max

    def _fitting(self, bounds: Sequence[int]) -> int:
        """How many payloads fit, of which each ends where the next one begins."""
        stop = min(len(bounds), self.room + 1)
        left = self.bytes_max - self.size_bytes
        count = bisect_right(bounds, bounds[0] + left, hi=stop) - 1
        return max(count, 0 if self._count else 1)

    def _appended(self, count: int, size_bytes: int, pointer: int | None) -> None:
        if pointer is not None and count:
            start, stop = self._count, self._count + count
            if self.pointers and self.pointers[-1][1:] == (start, pointer):
                start = self.pointers.pop().start
            self.pointers.append(PointerRange(start, stop, pointer))
        self._count += count
        self.size_bytes += size_bytes

    def mark(self) -> tuple[int, ...]:
        """The present end, for `cut`."""
        return len(self._ids), len(self._packed), self._count, self.size_bytes

    def cut(self, mark: tuple[int, ...]) -> None:
        """Remove what was appended since the mark was made."""
        listed_count, packed_count, self._count, self.size_bytes = mark
        del self._ids[listed_count:], self._payloads[listed_count:], self._packed[packed_count:]
        self.pointers = [
            each._replace(stop=min(each.stop, self._count))
            for each in self.pointers
            if each.start < self._count
        ]
        self.attributes = {
            index: each for index, each in self.attributes.items() if index < self._count
        }

    def columns(self) -> tuple[list[bytes], list[bytes]]:
        """All ids, and all payloads."""
        if self._packed:
            ids: list[bytes] = []
            payloads: list[bytes] = []
            for more_ids, more_payloads, packed in self._pieces():
                ids += more_ids
                payloads += more_payloads
                if packed is not None:
                    ids += packed.ids()
                    payloads += packed.payloads()
            self._ids, self._payloads, self._packed = ids, payloads, []
        return self._ids, self._payloads

    def joined(self) -> Joined:
        """The columns as bytes, without unpacking packed rows."""
        joined = Joined([], [], [])
        for ids, payloads, packed in self._pieces():
            joined.ids.extend(ids)
            joined.sizes.append(struct.pack(f">{len(payloads)}I", *map(len, payloads)))
            joined.payloads.extend(payloads)
            if packed is not None:
                joined.ids.append(packed.joined_ids())
                joined.sizes.append(packed.sizes())
                joined.payloads.append(packed.joined_payloads())
        return joined

    def _pieces(self) -> Iterator[tuple[list[bytes], list[bytes], PackedSlice | None]]:
        """In order: some messages of the lists, and the packed rows behind them."""
        start = 0
        for stop, packed in chain(self._packed, [(len(self._ids), None)]):
            yield self._ids[start:stop], self._payloads[start:stop], packed
            start = stop

    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload."""
        return [*zip(*self.columns(), strict=True)]

    def encoded(self, form: Form, *, generation: int) -> bytes:
        """The body of a reply in this form. Raises: NotAcceptableError."""
        body = self._forms.get(form)
        if body is None:
            body = self._forms[form] = self._encode(form, generation=generation)
        return body

    def _encode(self, form: Form, *, generation: int) -> bytes:
        media_type, schema = form
        match media_type:
            case MediaType.AVRO if schema == 1:
                return avro.encode_columns(*self.columns())
            case MediaType.AVRO:
                return avro.encode_columns_2(*self.columns(), self.decoded_attributes())
            case MediaType.JSON:
                return self._json(schema)
            case MediaType.ARROW:
                return arrow_form()(self, generation=generation, schema=schema)

    def _json(self, schema: int) -> bytes:
        """The bytes that `json.dumps` makes of the form of these messages."""
        texts = [*map(_json_of, *self.columns())]
        if schema == 2:
            attributes = self.decoded_attributes()
            members = (attributes.get(index, NO_ATTRIBUTES) for index in range(len(texts)))
            forms = map(json.dumps, map(attributes_to_json, members))
            texts = [f"{text[:-1]}, {form[1:]}" for text, form in zip(texts, forms, strict=True)]
        return f"[{', '.join(texts)}]".encode("ascii")

    def decoded_attributes(self) -> dict[int, Attributes]:
        """The attributes of those messages that have any, by their index."""
        return {index: decode_attributes(each) for index, each in self.attributes.items()}


@cache
def arrow_form() -> Callable[..., bytes]:
    """The encoder of the Arrow form. The first call loads pyarrow, which takes a tenth of a second.

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
