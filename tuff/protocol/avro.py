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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import TypeVar

from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes, checked_attributes
from tuff.protocol.errors import BadRequestError, InvalidTtlError, TuffError
from tuff.protocol.ids import MESSAGE_ID_SIZE, SEQ_ID_LIMIT, MessageId, Offset
from tuff.protocol.requests import (
    MESSAGES_COUNT_MAX,
    WITH_ATTRIBUTES_COUNT_MAX,
    ConsumeRequest,
    PublishRequest,
    RollbackDetail,
    too_many_messages,
    too_many_with_attributes,
)
from tuff.protocol.transaction import Transaction

_LENGTHS_COUNT_MAX = 4_096  # cached encodings; messages of one kind have few different lengths
_VARINT_SIZE_MAX = 10  # bytes of a 64-bit number
_TWO_BYTES_LIMIT = 1 << 14  # a larger varint has more than two bytes
_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
_ID_HEAD = bytes((2 * MESSAGE_ID_SIZE,))  # the zig-zag length of a message id, one byte
_ARRAY_END = b"\x00"
_WITHOUT_ATTRIBUTES = b"\x00" + 2 * _ARRAY_END

Item = TypeVar("Item")


class _Reader:
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
        if not -_INT_MAX - 1 <= value <= _INT_MAX:
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

    def read_values(self, *, values_per_item: int = 1) -> list[bytes]:
        """The byte strings of an array whose items consist of `values_per_item` byte strings."""
        items: list[bytes] = []
        for count in self.blocks(too_many=too_many_messages):
            self._read_items(count * values_per_item, items)
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
            if start < stop and data[at] == _ID_HEAD[0]:
                size = data[id_stop]
                if size >= 0x80:
                    size, start = size & 0x7F | data[start] << 7, start + 1
                payload_stop = start + (size >> 1)
                next_at = payload_stop + len(_WITHOUT_ATTRIBUTES)
                if (
                    not size & 1
                    and size < _TWO_BYTES_LIMIT
                    and data[payload_stop:next_at] == _WITHOUT_ATTRIBUTES
                ):
                    id, payload = data[at + 1 : id_stop], data[start:payload_stop]
                    messages.append((id, payload, NO_ATTRIBUTES))
                    at = next_at
                    continue
            self._at = at
            messages.append((self.read_bytes(), self.read_bytes(), _read_attributes(self)))
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


def decode_publish_request(body: bytes) -> PublishRequest:
    """Raises: BadRequestError: the body is not exactly one PublishRequest."""
    payload = _only_payload(body)
    if payload is not None:
        return PublishRequest(pointer=None, payloads=[payload])
    reader = _Reader(body, "PublishRequest")
    pointer = reader.read_long() if reader.read_branch(2) == 0 else None
    payloads = reader.read_values()
    reader.end()
    return PublishRequest(pointer=pointer, payloads=payloads)


def decode_publish_request_2(body: bytes) -> PublishRequest:
    """Decode a PublishRequest in the second version of the schema, in which messages have
    attributes.

    Raises:
        BadRequestError (its kinds): the body is not exactly one PublishRequest, or a message has
            attributes or a time to live that are not allowed.
    """
    reader = _Reader(body, "PublishRequest")
    pointer = reader.read_long() if reader.read_branch(2) == 0 else None
    payloads: list[bytes] = []
    ttls_s: list[int | None] = []
    attributes: list[Attributes | None] = []
    with_attributes_count = 0
    for count in reader.blocks(too_many=too_many_messages):
        for _ in range(count):
            payloads.append(reader.read_bytes())
            if reader.skips(_WITHOUT_ATTRIBUTES):
                attributes.append(None)
            else:
                attributes.append(checked_attributes(*_read_attributes(reader)))
                with_attributes_count += 1
                if with_attributes_count > WITH_ATTRIBUTES_COUNT_MAX:
                    raise too_many_with_attributes()
            ttls_s.append(_read_ttl(reader) if reader.read_branch(2) else None)
    reader.end()
    return PublishRequest(
        pointer=pointer,
        payloads=payloads,
        ttls_s=ttls_s if any(ttls_s) else None,
        attributes=attributes if any(attributes) else None,
    )


def _read_attributes(reader: _Reader) -> Attributes:
    key = reader.read_bytes() if reader.read_branch(2) else None
    tags = reader.read_items(reader.read_text)
    headers = reader.read_items(lambda: (reader.read_text(), reader.read_bytes()))
    return Attributes(key, tuple(tags), tuple(headers))


def _read_ttl(reader: _Reader) -> int:
    ttl_s = reader.read_int()
    if ttl_s < 1:
        raise InvalidTtlError(
            f"a ttl is a whole number of seconds from 1 to {_INT_MAX}, not {ttl_s}"
        )
    return ttl_s


def _only_payload(body: bytes) -> bytes | None:
    """The payload of a request with one message of less than 8 KiB and without a transaction, as
    nearly all have; None for any other request, and for one that may be malformed."""
    if body[:2] != b"\x02\x02" or len(body) < len(b"\x02\x02\x00\x00"):
        return None
    size, start = body[2], 3
    if size >= 0x80:
        if body[3] >= 0x80:
            return None
        size, start = size & 0x7F | body[3] << 7, 4
    # Zig-zag: an even number is twice the length. Only the end of the array follows the payload.
    if size & 1 or start + (size >> 1) + 1 != len(body) or body[-1]:
        return None
    return body[start:-1]


def decode_rollback_detail(body: bytes) -> RollbackDetail:
    """Raises: BadRequestError: the body is not exactly one PublishResponse with a pointer."""
    reader = _Reader(body, "PublishResponse")
    pointer = reader.read_long() if reader.read_branch(2) == 0 else None
    first = Offset(reader.read_long(), reader.read_int())
    last = Offset(reader.read_long(), reader.read_int())
    reader.end()
    return rollback_detail(pointer, first, last)


def rollback_detail(pointer: int | None, first: Offset, last: Offset) -> RollbackDetail:
    """Raises: BadRequestError: no pointer, or numbers that are no offsets."""
    if pointer is None:
        raise BadRequestError(
            "a rollback needs the transactionWritePointer of the publish that it rolls back"
        )
    for timestamp_ms, seq_id in (first, last):
        if not (0 <= timestamp_ms <= _LONG_MAX and 0 <= seq_id < SEQ_ID_LIMIT):
            raise BadRequestError(
                f"timestamp {timestamp_ms}, sequence id {seq_id} is no offset: a timestamp is 0 or "
                f"more, a sequence id 0 to {SEQ_ID_LIMIT - 1}"
            )
    return RollbackDetail(pointer, first, last)


def decode_consume_request(body: bytes) -> ConsumeRequest:
    """Raises: BadRequestError (its kinds): not exactly one ConsumeRequest, or a bad id or
    transaction in it."""
    reader = _Reader(body, "ConsumeRequest")
    start = _read_start(reader)
    inclusive = reader.read_boolean()
    limit = reader.read_int() if reader.read_branch(2) == 0 else None
    transaction = (
        Transaction.from_bytes(reader.read_bytes()) if reader.read_branch(2) == 0 else None
    )
    reader.end()
    return ConsumeRequest(start=start, inclusive=inclusive, limit=limit, transaction=transaction)


def _read_start(reader: _Reader) -> MessageId | int | None:
    branch = reader.read_branch(3)
    if branch == 0:
        return MessageId.from_bytes(reader.read_bytes())
    return reader.read_long() if branch == 1 else None


def encode_long(number: int) -> bytes:
    """A zig-zag varint."""
    assert -_LONG_MAX - 1 <= number <= _LONG_MAX
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
    return b"".join((pointer, _array(items, len(request.payloads))))


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
            _WITHOUT_ATTRIBUTES if each is None else encode_attributes(each),
            b"\x00" if ttl_s is None else b"\x02" + encode_long(ttl_s),
        )
    )
    return b"".join((pointer, _array(items, count)))


def encode_attributes(attributes: Attributes) -> bytes:
    """The members key, tags and headers of a message."""
    key, tags, headers = attributes
    return b"".join(
        (
            b"\x00" if key is None else b"\x02" + _prefixed(key),
            _array((_prefixed(tag.encode()) for tag in tags), len(tags)),
            _array(
                (_prefixed(name.encode()) + _prefixed(value) for name, value in headers),
                len(headers),
            ),
        )
    )


def _prefixed(data: bytes) -> bytes:
    return encode_length(len(data)) + data


def encode_rollback_detail(detail: RollbackDetail) -> bytes:
    numbers = (detail.pointer, *detail.first, *detail.last)
    return b"\x00" + b"".join(map(encode_long, numbers))


def decode_messages(body: bytes) -> list[tuple[bytes, bytes]]:
    """The id and the payload of each message. Raises: BadRequestError: the body is not exactly one
    ConsumeResponse."""
    reader = _Reader(body, "ConsumeResponse")
    values = reader.read_values(values_per_item=2)
    reader.end()
    return list(zip(values[::2], values[1::2], strict=True))


def decode_messages_2(body: bytes) -> list[tuple[bytes, bytes, Attributes]]:
    """The id, the payload and the attributes of each message, in the second version of the schema.
    Raises: BadRequestError: the body is not exactly one ConsumeResponse."""
    reader = _Reader(body, "ConsumeResponse")
    messages: list[tuple[bytes, bytes, Attributes]] = []
    for count in reader.blocks(too_many=too_many_messages):
        reader.read_messages(count, messages)
    reader.end()
    return messages


def encode_columns(ids: Sequence[bytes], payloads: Sequence[bytes]) -> bytes:
    """The ConsumeResponse of messages with these ids and payloads."""
    if not ids:
        return _array((), 0)
    # Filled column by column: an iterator over messages takes twice the time.
    pieces = [_ID_HEAD] * (2 + 4 * len(ids))
    pieces[0] = encode_long(len(ids))
    pieces[2:-1:4] = ids
    pieces[3:-1:4] = map(encode_length, map(len, payloads))
    pieces[4:-1:4] = payloads
    pieces[-1] = _ARRAY_END
    return b"".join(pieces)


def encode_columns_2(
    ids: Sequence[bytes], payloads: Sequence[bytes], attributes: Mapping[int, Attributes]
) -> bytes:
    """Encode messages in the second version of the schema; `attributes` are those of the messages
    that have any, by their index."""
    if not ids:
        return _array((), 0)
    # As in version 1: what is between two payloads is one piece, and nearly always the same.
    pieces = [_WITHOUT_ATTRIBUTES + _ID_HEAD] * (2 + 4 * len(ids))
    pieces[0] = encode_long(len(ids))
    pieces[1] = _ID_HEAD
    pieces[2:-1:4] = ids
    pieces[3:-1:4] = map(encode_length, map(len, payloads))
    pieces[4:-1:4] = payloads
    pieces[-1] = _WITHOUT_ATTRIBUTES + _ARRAY_END
    for index, each in attributes.items():
        behind = _ID_HEAD if index + 1 < len(ids) else _ARRAY_END
        pieces[5 + 4 * index] = encode_attributes(each) + behind
    return b"".join(pieces)


def _array(pieces: Iterable[bytes], count: int) -> bytes:
    if not count:
        return _ARRAY_END
    return b"".join((encode_long(count), *pieces, _ARRAY_END))
