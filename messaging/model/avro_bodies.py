"""The Avro forms that only a server reads or writes (protocol §4): requests, and messages by
column.
`tuff.protocol.avro` has the schemas, and what clients read and write.
"""

from collections.abc import Mapping, Sequence

from tuff.protocol.attributes import Attributes, checked_attributes
from tuff.protocol.avro import (
    ARRAY_END,
    ID_HEAD,
    INT_MAX,
    WITHOUT_ATTRIBUTES,
    AvroReader,
    array,
    encode_attributes,
    encode_length,
    encode_long,
    read_attributes,
    rollback_detail,
)
from tuff.protocol.errors import InvalidTtlError
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.requests import (
    WITH_ATTRIBUTES_COUNT_MAX,
    ConsumeRequest,
    PublishRequest,
    RollbackDetail,
    too_many_messages,
    too_many_with_attributes,
)
from tuff.protocol.transaction import Transaction


def decode_publish_request(body: bytes) -> PublishRequest:
    """Raises: BadRequestError: the body is not exactly one PublishRequest."""
    payload = _only_payload(body)
    if payload is not None:
        return PublishRequest(pointer=None, payloads=[payload])
    reader = AvroReader(body, "PublishRequest")
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
    reader = AvroReader(body, "PublishRequest")
    pointer = reader.read_long() if reader.read_branch(2) == 0 else None
    payloads: list[bytes] = []
    ttls_s: list[int | None] = []
    attributes: list[Attributes | None] = []
    with_attributes_count = 0
    for count in reader.blocks(too_many=too_many_messages):
        for _ in range(count):
            payloads.append(reader.read_bytes())
            if reader.skips(WITHOUT_ATTRIBUTES):
                attributes.append(None)
            else:
                attributes.append(checked_attributes(*read_attributes(reader)))
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


def _read_ttl(reader: AvroReader) -> int:
    ttl_s = reader.read_int()
    if ttl_s < 1:
        raise InvalidTtlError(
            f"a ttl is a whole number of seconds from 1 to {INT_MAX}, not {ttl_s}"
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
    reader = AvroReader(body, "PublishResponse")
    pointer = reader.read_long() if reader.read_branch(2) == 0 else None
    first = Offset(reader.read_long(), reader.read_int())
    last = Offset(reader.read_long(), reader.read_int())
    reader.end()
    return rollback_detail(pointer, first, last)


def decode_consume_request(body: bytes) -> ConsumeRequest:
    """Raises: BadRequestError (its kinds): not exactly one ConsumeRequest, or a bad id or
    transaction in it."""
    reader = AvroReader(body, "ConsumeRequest")
    start = _read_start(reader)
    inclusive = reader.read_boolean()
    limit = reader.read_int() if reader.read_branch(2) == 0 else None
    transaction = (
        Transaction.from_bytes(reader.read_bytes()) if reader.read_branch(2) == 0 else None
    )
    reader.end()
    return ConsumeRequest(start=start, inclusive=inclusive, limit=limit, transaction=transaction)


def _read_start(reader: AvroReader) -> MessageId | int | None:
    branch = reader.read_branch(3)
    if branch == 0:
        return MessageId.from_bytes(reader.read_bytes())
    return reader.read_long() if branch == 1 else None


def encode_rollback_detail(detail: RollbackDetail) -> bytes:
    numbers = (detail.pointer, *detail.first, *detail.last)
    return b"\x00" + b"".join(map(encode_long, numbers))


def encode_columns(
    ids: Sequence[bytes], payloads: Sequence[bytes], attributes: Mapping[int, Attributes] | None
) -> bytes:
    """The ConsumeResponse of messages with these ids and payloads; None: in the first version of
    the schema. `attributes` are those of the messages that have any, by their index."""
    if not ids:
        return array((), 0)
    without = b"" if attributes is None else WITHOUT_ATTRIBUTES
    # Filled column by column: an iterator over messages takes twice the time. What is between two
    # payloads is one piece, and nearly always the same.
    pieces = [without + ID_HEAD] * (2 + 4 * len(ids))
    pieces[0] = encode_long(len(ids))
    pieces[1] = ID_HEAD
    pieces[2:-1:4] = ids
    pieces[3:-1:4] = map(encode_length, map(len, payloads))
    pieces[4:-1:4] = payloads
    pieces[-1] = without + ARRAY_END
    for index, each in (attributes or {}).items():
        behind = ID_HEAD if index + 1 < len(ids) else ARRAY_END
        pieces[5 + 4 * index] = encode_attributes(each) + behind
    return b"".join(pieces)
