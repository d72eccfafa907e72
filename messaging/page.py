"""The messages of one reply, in the forms in which they go out (protocol §3.4, §4).

Rows become items of the Avro reply where they are read, so that a reply is one join of what is
there already. The other forms are made of the same items. Readers that ask for the same get the
same page, and each form of it is made once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from json.encoder import encode_basestring_ascii
from types import MappingProxyType

from tuff.protocol import avro
from tuff.protocol.errors import NotAcceptableError
from tuff.protocol.forms import payload_to_json

NO_POINTERS: Mapping[int, int] = MappingProxyType({})


class Page:
    """An immutable list of Avro items of one generation of a topic, and the replies that were made
    of it. `pointers`: the write pointers of those that have one, by their index."""

    __slots__ = ("_arrow", "_avro", "_json", "items", "pointers")

    def __init__(self, items: Sequence[bytes], pointers: Mapping[int, int] = NO_POINTERS) -> None:
        self.items = items
        self.pointers = pointers
        self._arrow: bytes | None = None
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

    def arrow(self, *, generation: int) -> bytes:
        """The body of an Arrow reply. Raises: NotAcceptableError."""
        if self._arrow is None:
            self._arrow = arrow_form()(self.items, self.pointers, generation=generation)
        return self._arrow


EMPTY_PAGE = Page(())


@cache
def arrow_form() -> Callable[..., bytes]:
    """What makes the Arrow form. The first call that finds pyarrow takes a tenth of a second.

    Raises:
        NotAcceptableError: pyarrow is not installed where the server runs.
    """
    try:
        from messaging.arrow import encode
    except ImportError as error:
        raise NotAcceptableError(
            f"this server has no pyarrow for replies in Arrow ({error}); install "
            "'tuff-messaging[arrow]' where it runs, or ask for JSON or Avro"
        ) from None
    return encode


def _json_of(item: bytes) -> str:
    message_id, payload = avro.decode_message(item)
    timestamp_ms = int.from_bytes(message_id[:8], "big")
    form = payload_to_json(payload)
    text = encode_basestring_ascii(form) if isinstance(form, str) else json.dumps(form)
    return f'{{"id": "{message_id.hex()}", "timestamp": {timestamp_ms}, "payload": {text}}}'
