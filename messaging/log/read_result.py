"""`Messages`: the messages of one read, from the scan of rows or the tail cache to the reply."""

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from messaging.model import avro_bodies
from messaging.model.attributes import decode_attributes
from messaging.model.packed_rows import PackedSlice
from messaging.model.row_format import OFFSET_SIZE
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.errors import NotAcceptableError
from tuff.protocol.json_bodies import attributes_to_json, payload_to_json
from tuff.protocol.media_types import Encoding, MediaType

NO_PAYLOAD = bytes(OFFSET_SIZE)  # the second half of the id of a message that is a row by itself


class PublishedRange(NamedTuple):
    """Neighbours among messages that were published under one write pointer."""

    start: int  # index of the first message
    stop: int  # index behind the last message
    pointer: int  # positive, also when the rows were rolled back


class JoinedColumns(NamedTuple):
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
    attributes; the first message always fits. The tail cache passes complete columns. Each encoding
    of the reply is made when nothing is appended any more, and only once: readers that ask for the
    same get the same `Messages`, and so the same bytes.

    Packed rows stay slices of the stored value (`PackedSlice`) until ids and payloads are needed
    one by one. The Arrow encoder joins slices, so that no object is made for a message.
    """

    __slots__ = ("_count", "_encoded", "_ids", "_packed", "_payloads", "attributes", "bytes_max",
                 "limit", "pointers", "size_bytes")  # fmt: skip

    def __init__(self, *, limit: int = 0, bytes_max: int | None = 0) -> None:
        """`bytes_max`: None if all that is appended is known to be few enough bytes."""
        self.limit = limit
        self.bytes_max = bytes_max
        self.size_bytes = 0  # of all payloads and attributes
        self.pointers: list[PublishedRange] = []
        self.attributes: dict[int, bytes] = {}
        self._count = 0
        self._ids: list[bytes] = []
        self._payloads: list[bytes] = []
        # Each with the index in the lists before which it belongs.
        self._packed: list[tuple[int, PackedSlice]] = []
        self._encoded: dict[Encoding, bytes] = {}

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

    def extend(self, ids: list[bytes], payloads: list[bytes], *, pointer: int | None = None) -> int:
        """Append those messages from the beginning that fit, and return their number. The lists
        belong to these messages from now on."""
        size_bytes = 0
        if self.bytes_max is None:
            ids, payloads = ids[: self.room], payloads[: self.room]
        elif not self._has_room(len(ids), size_bytes := sum(map(len, payloads))):
            bounds = [*accumulate(map(len, payloads), initial=0)]
            count = self._fitting(bounds)
            ids, payloads, size_bytes = ids[:count], payloads[:count], bounds[count]
        count = len(ids)
        if self._ids:
            self._ids += ids
            self._payloads += payloads
        else:
            self._ids, self._payloads = ids, payloads
        self._appended(count, size_bytes, pointer)
        return count

    def extend_packed(self, packed: PackedSlice, *, pointer: int | None = None) -> int:
        """Append the messages of a slice of packed rows, which is not empty."""
        if not self._has_room(len(packed), packed.size_bytes):
            count = self._fitting(packed.bounds())
            if not count:
                return 0
            packed = packed.first(count)
        self._packed.append((len(self._ids), packed))
        self._appended(len(packed), packed.size_bytes, pointer)
        return len(packed)

    def _has_room(self, count: int, size_bytes: int) -> bool:
        if self.bytes_max is not None and self.size_bytes + size_bytes > self.bytes_max:
            return False
        return count <= self.room

    def _fitting(self, bounds: Sequence[int]) -> int:
        """How many payloads fit, of which each ends where the next one begins."""
        stop = min(len(bounds), self.room + 1)
        if self.bytes_max is None:
            return stop - 1
        left = self.bytes_max - self.size_bytes
        count = bisect_right(bounds, bounds[0] + left, hi=stop) - 1
        return max(count, 0 if self._count else 1)

    def _appended(self, count: int, size_bytes: int, pointer: int | None) -> None:
        if pointer is not None and count:
            start, stop = self._count, self._count + count
            if self.pointers and self.pointers[-1][1:] == (start, pointer):
                start = self.pointers.pop().start
            self.pointers.append(PublishedRange(start, stop, pointer))
        self._count += count
        self.size_bytes += size_bytes

    def sizes(self) -> tuple[int, ...]:
        """The present end, for `cut`."""
        return len(self._ids), len(self._packed), self._count, self.size_bytes

    def cut(self, sizes: tuple[int, ...]) -> None:
        """Remove what was appended since `sizes` was this."""
        listed_count, packed_count, self._count, self.size_bytes = sizes
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

    def joined(self) -> JoinedColumns:
        """The columns as bytes, without unpacking packed rows."""
        joined = JoinedColumns([], [], [])
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

    def encoded(self, encoding: Encoding, *, generation: int) -> bytes:
        """The body of a reply in this encoding. Raises: NotAcceptableError."""
        body = self._encoded.get(encoding)
        if body is None:
            body = self._encoded[encoding] = self._encode(encoding, generation=generation)
        return body

    def has_encoded(self, encoding: Encoding) -> bool:
        """Whether the body in this encoding is made already."""
        return encoding in self._encoded

    def _encode(self, encoding: Encoding, *, generation: int) -> bytes:
        media_type, schema = encoding
        match media_type:
            case MediaType.AVRO:
                attributes = self.decoded_attributes() if schema == 2 else None
                return avro_bodies.encode_columns(*self.columns(), attributes)
            case MediaType.JSON:
                return self._json(schema)
            case MediaType.ARROW:
                return arrow_encoder()(self, generation=generation, schema=schema)

    def _json(self, schema: int) -> bytes:
        """The bytes that `json.dumps` makes of these messages."""
        texts = [*map(_json_of, *self.columns())]
        if schema == 2:
            attributes = self.decoded_attributes()
            members = (attributes.get(index, NO_ATTRIBUTES) for index in range(len(texts)))
            more = map(json.dumps, map(attributes_to_json, members))
            texts = [f"{text[:-1]}, {each[1:]}" for text, each in zip(texts, more, strict=True)]
        return f"[{', '.join(texts)}]".encode("ascii")

    def decoded_attributes(self) -> dict[int, Attributes]:
        """The attributes of those messages that have any, by their index."""
        return {index: decode_attributes(each) for index, each in self.attributes.items()}


@cache
def arrow_encoder() -> Callable[..., bytes]:
    """The encoder of Arrow replies. The first call loads pyarrow, which takes a tenth of a second.

    Raises:
        NotAcceptableError: pyarrow is not installed where the server runs.
    """
    try:
        from messaging.log.arrow_reply import encode
    except ImportError as error:
        raise NotAcceptableError(
            f"this server has no pyarrow for replies in Arrow ({error}); install "
            "'tuff-messaging[arrow]' where it runs, or ask for JSON or Avro"
        ) from None
    return encode


def _json_of(message_id: bytes, payload: bytes) -> str:
    timestamp_ms = int.from_bytes(message_id[:8], "big")
    shown = payload_to_json(payload)
    text = encode_basestring_ascii(shown) if isinstance(shown, str) else json.dumps(shown)
    return f'{{"id": "{message_id.hex()}", "timestamp": {timestamp_ms}, "payload": {text}}}'
