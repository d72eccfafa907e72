"""The messages of one reply, in the forms in which they go out (protocol §3.4, §4).

Rows become items of the Avro reply where they are read, so that a reply is one join of what is
there already. The JSON form is made of the same items. Readers that ask for the same get the same
page, and each form of it is made once.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii

from tuff.protocol import avro
from tuff.protocol.forms import payload_to_json


class Page:
    """An immutable list of Avro items, and the replies that were made of it."""

    __slots__ = ("_avro", "_json", "items")

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = items
        self._avro: bytes | None = None
        self._json: bytes | None = None

    def __len__(self) -> int:
        return len(self.items)

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload."""
        return [avro.decode_message(item) for item in self.items]

    def avro(self) -> bytes:
        """The body of an Avro reply."""
        if self._avro is None:
            self._avro = avro.encode_items(self.items)
        return self._avro

    def json(self) -> bytes:
        """The body of a JSON reply, which is what `json.dumps` makes of it."""
        if self._json is None:
            self._json = f"[{', '.join(map(_json_of, self.items))}]".encode("ascii")
        return self._json


EMPTY_PAGE = Page(())


def _json_of(item: bytes) -> str:
    message_id, payload = avro.decode_message(item)
    timestamp_ms = int.from_bytes(message_id[:8], "big")
    form = payload_to_json(payload)
    text = encode_basestring_ascii(form) if isinstance(form, str) else json.dumps(form)
    return f'{{"id": "{message_id.hex()}", "timestamp": {timestamp_ms}, "payload": {text}}}'
