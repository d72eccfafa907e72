"""Messages of a poll in the first version of the Avro schema, as fastavro reads them."""

import io

import fastavro

from process.binary_schemas import AVRO

MESSAGES = fastavro.parse_schema(AVRO["MessageList"])


def messages_in(body: bytes) -> list[tuple[bytes, bytes]]:
    """The id and the payload of each message of a reply."""
    found = fastavro.schemaless_reader(io.BytesIO(body), MESSAGES, None)
    assert isinstance(found, list)
    return [(each["id"], each["payload"]) for each in found]
