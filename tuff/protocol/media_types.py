"""The media types of bodies and replies, and the versions of their schemas (protocol §1)."""

from enum import Enum
from typing import NamedTuple

JSON_REPLY_TYPE = "application/json; charset=utf-8"


class MediaType(Enum):
    """The media types of messages: JSON and Avro for bodies and replies, Arrow for replies only."""

    JSON = "application/json"
    AVRO = "avro/binary"
    ARROW = "application/vnd.apache.arrow.stream"


class Encoding(NamedTuple):
    """A media type, and the version of its schema: in version 2, messages have attributes (protocol
    §1, Schemas)."""

    media_type: MediaType
    schema: int = 1

    @property
    def content_type(self) -> str:
        """The content type of a reply in this encoding."""
        name = JSON_REPLY_TYPE if self.media_type is MediaType.JSON else self.media_type.value
        return name if self.schema == 1 else f"{name}; schema={self.schema}"
