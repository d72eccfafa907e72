"""The Avro forms of the message endpoints (protocol §4): raw binary datums, no header.

    long    := zig-zag varint, at most 10 bytes
    bytes   := long length, content
    array   := ( long count, item* | long -count, long size, item* )* 00
    PublishRequest  := (00 long | 02) array<bytes>
    PublishRequest2 := (00 long | 02) array<payload bytes, attributes, (00 | 02 int)>
    PublishResponse := (00 long | 02) long int long int
    ConsumeRequest  := (00 bytes | 02 long | 04) boolean (00 int | 02) (00 bytes | 02)
    ConsumeResponse := array<id bytes, payload bytes>
    ConsumeResponse2 := array<id bytes, payload bytes, attributes>
    attributes      := (00 | 02 bytes) array<tag string> array<name string, value bytes>

Written by hand, since every publish and every poll passes here: no unneeded record is built, and a
count or length is checked against the rest of the body before memory is reserved, which fastavro
does not do. The tests compare it with fastavro (decision 0005).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, repeat
from typing import TypeVar

from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.ids import MESSAGE_ID_SIZE, SEQ_ID_LIMIT, Offset
from tuff.protocol.requests import (
    MESSAGES_COUNT_MAX,
    PublishRequest,
    RollbackDetail,
    too_many_messages,
)

_LENGTHS_COUNT_MAX = 4_096  # cached encodings; messages of one kind have few different lengths
_VARINT_SIZE_MAX = 10  # bytes of a 64-bit number
_TWO_BYTES_LIMIT = 1 << 14  # a larger varint has more than two bytes
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
ID_HEAD = bytes((2 * MESSAGE_ID_SIZE,))  # the zig-zag length of a message id, one byte
ARRAY_END = b"\x00"
WITHOUT_ATTRIBUTES = b"\x00" + 2 * ARRAY_END

Item = TypeVar("Item")


class AvroReader:
    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def read_long(self) -> int:
        at = self._at
        if at < len(self._data) and (byte := self._data[at]) < 0x80:
            self._at = at + 1
            return (byte >> 1) ^ -(byte & 1)
        return self._read_long_of_many()

    def _read_long_of_many(self) -> int:
        result = shift = 0
        for at in range(self._at, min(self._at + _VARINT_SIZE_MAX, len(self._data))):
            byte = self._data[at]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at + 1
                if result >> 64:
                    raise self._error("has a number of more than 64 bits")
                return (result >> 1) ^ -(result & 1)
            shift += 7
        raise self._error("is cut off, or has a number of more than 64 bits")

    def read_int(self) -> int:
        value = self.read_long()
        if not -INT_MAX - 1 <= value <= INT_MAX:
            raise self._error(f"has {value} where an int of 32 bits belongs")
        return value

    def read_boolean(self) -> bool:
        value = self._data[self._at : self._at + 1]
        if value not in (b"\x00", b"\x01"):
            raise self._error("is cut off, or has another byte than 00 or 01 as its boolean")
        self._at += 1
        return value == b"\x01"

    def read_bytes(self) -> bytes:
        size = self.read_long()
        stop = self._at + size
        if size < 0 or stop > len(self._data):
            raise self._error(f"says that {size} bytes follow, and {self._rest()} do")
        value = self._data[self._at : stop]
        self._at = stop
        return value

    def read_branch(self, count: int) -> int:
        index = self.read_long()
        if not 0 <= index < count:
            raise self._error(f"picks branch {index} of a union that has {count}")
        return index

    def skips(self, expected: bytes) -> bool:
        """Whether these bytes follow, which are then passed over."""
        if not self._data.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def read_text(self) -> str:
        try:
            return self.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("has a string that is not UTF-8") from None

    def read_values(self) -> list[bytes]:
        """The items of an array of byte strings."""
        items: list[bytes] = []
        for count in self.blocks(too_many=too_many_messages):
            self._read_items(count, items)
        return items

    def read_items(self, read_item: Callable[[], Item]) -> list[Item]:
        """The items of an array."""
        blocks = self.blocks(too_many=self._too_many_items)
        return [read_item() for count in blocks for _ in range(count)]

    def blocks(self, *, too_many: Callable[[int], TuffError]) -> Iterator[int]:
        """The number of items in each block of an array; the caller reads the items."""
        item_count = 0
        while count := self.read_long():
            size = self._block_size() if count < 0 else None
            start = self._at
            if abs(count) > self._rest():  # each item takes a byte at least
                raise self._error(f"says that {abs(count)} items follow in {self._rest()} bytes")
            item_count += abs(count)
            if item_count > MESSAGES_COUNT_MAX:
                raise too_many(item_count)
            yield abs(count)
            if size not in (None, self._at - start):
                raise self._error(f"says that a block has {size} bytes, not {self._at - start}")

    def _read_items(self, count: int, items: list[bytes]) -> None:
        # Nearly all payloads have less than 8 KiB, so their length takes one byte or two. It is
        # read inline, since a call would cost more than the rest of the loop.
        data, at, stop = self._data, self._at, len(self._data)
        for _ in range(count):
            head = data[at] if at < stop else 1
            start = at + 1
            if head >= 0x80 and start < stop and data[start] < 0x80:
                size, start = (head & 0x7F | data[start] << 7) >> 1, at + 2
            else:
                size = head >> 1
            if head & 1 or (head >= 0x80 and start != at + 2) or start + size > stop:
                self._at = at  # a longer length, or a malformed one
                items.append(self.read_bytes())
                at = self._at
            else:
                at = start + size
                items.append(data[start:at])
        self._at = at

    def _too_many_items(self, count: int) -> TuffError:
        return self._error(f"has an array of {count} items, and {MESSAGES_COUNT_MAX} is the most")

    def read_messages(self, count: int, messages: list[tuple[bytes, bytes, Attributes]]) -> None:
        """Append `count` messages of the second version of the schema."""
        # Inline, for the reason of `_read_items`; nearly all messages have no attributes.
        data, at, stop = self._data, self._at, len(self._data)
        for _ in range(count):
            id_stop = at + 1 + MESSAGE_ID_SIZE
            start = id_stop + 1
            if start < stop and data[at] == ID_HEAD[0]:
                size = data[id_stop]
                if size >= 0x80:
                    size, start = size & 0x7F | data[start] << 7, start + 1
                payload_stop = start + (size >> 1)
                next_at = payload_stop + len(WITHOUT_ATTRIBUTES)
                if (
                    not size & 1
                    and size < _TWO_BYTES_LIMIT
                    and data[payload_stop:next_at] == WITHOUT_ATTRIBUTES
                ):
                    id, payload = data[at + 1 : id_stop], data[start:payload_stop]
                    messages.append((id, payload, NO_ATTRIBUTES))
                    at = next_at
                    continue
            self._at = at
            messages.append((self.read_bytes(), self.read_bytes(), read_attributes(self)))
            at = self._at
        self._at = at

    def _block_size(self) -> int:
        size = self.read_long()
        if not 0 <= size <= self._rest():
            raise self._error(f"says that a block has {size} bytes, and {self._rest()} follow")
        return size

    def end(self) -> None:
        if self._rest():
            raise self._error(f"is followed by {self._rest()} bytes that do not belong to it")

    def _rest(self) -> int:
        return len(self._data) - self._at

    def _error(self, fact: str) -> BadRequestError:
        return BadRequestError(f"the Avro {self._what} {fact}")


def read_attributes(reader: AvroReader) -> Attributes:
    key = reader.read_bytes() if reader.read_branch(2) else None
    tags = reader.read_items(reader.read_text)
    headers = reader.read_items(lambda: (reader.read_text(), reader.read_bytes()))
    return Attributes(key, tuple(tags), tuple(headers))


def rollback_detail(pointer: int | None, first: Offset, last: Offset) -> RollbackDetail:
    """Raises: BadRequestError: no pointer, or numbers that are no offsets."""
    if pointer is None:
        raise BadRequestError(
            "a rollback needs the transactionWritePointer of the publish that it rolls back"
        )
    for timestamp_ms, seq_id in (first, last):
        if not (0 <= timestamp_ms <= LONG_MAX and 0 <= seq_id < SEQ_ID_LIMIT):
            raise BadRequestError(
                f"timestamp {timestamp_ms}, sequence id {seq_id} is no offset: a timestamp is 0 or "
                f"more, a sequence id 0 to {SEQ_ID_LIMIT - 1}"
            )
    return RollbackDetail(pointer, first, last)


def encode_long(number: int) -> bytes:
    """A zig-zag varint."""
    assert -LONG_MAX - 1 <= number <= LONG_MAX
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


encode_length = lru_cache(_LENGTHS_COUNT_MAX)(encode_long)  # of payloads


def encode_publish_request(request: PublishRequest) -> bytes:
    """The request. Its time to live is not in the body, but in the query."""
    pointer = b"\x02" if request.pointer is None else b"\x00" + encode_long(request.pointer)
    lengths = map(encode_length, map(len, request.payloads))
    items = chain.from_iterable(zip(lengths, request.payloads, strict=True))
    return b"".join((pointer, array(items, len(request.payloads))))


def encode_publish_request_2(request: PublishRequest) -> bytes:
    """The request in the second version of the schema."""
    pointer = b"\x02" if request.pointer is None else b"\x00" + encode_long(request.pointer)
    count = len(request.payloads)
    ttls_s = request.ttls_s or repeat(None, count)
    attributes = request.attributes or repeat(None, count)
    items = (
        piece
        for payload, ttl_s, each in zip(request.payloads, ttls_s, attributes, strict=True)
        for piece in (
            encode_length(len(payload)),
            payload,
            WITHOUT_ATTRIBUTES if each is None else encode_attributes(each),
            b"\x00" if ttl_s is None else b"\x02" + encode_long(ttl_s),
        )
    )
    return b"".join((pointer, array(items, count)))


def encode_attributes(attributes: Attributes) -> bytes:
    """The members key, tags and headers of a message."""
    key, tags, headers = attributes
    return b"".join(
        (
            b"\x00" if key is None else b"\x02" + _prefixed(key),
            array((_prefixed(tag.encode()) for tag in tags), len(tags)),
            array(
                (_prefixed(name.encode()) + _prefixed(value) for name, value in headers),
                len(headers),
            ),
        )
    )


def _prefixed(data: bytes) -> bytes:
    return encode_length(len(data)) + data


def decode_messages_2(body: bytes) -> list[tuple[bytes, bytes, Attributes]]:
    """The id, the payload and the attributes of each message, in the second version of the schema.
    Raises: BadRequestError: the body is not exactly one ConsumeResponse."""
    reader = AvroReader(body, "ConsumeResponse")
    messages: list[tuple[bytes, bytes, Attributes]] = []
    for count in reader.blocks(too_many=too_many_messages):
        reader.read_messages(count, messages)
    reader.end()
    return messages


def array(pieces: Iterable[bytes], count: int) -> bytes:
    if not count:
        return ARRAY_END
    return b"".join((encode_long(count), *pieces, ARRAY_END))
