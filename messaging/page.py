"""The messages of one reply, in the forms in which they go out (protocol §3.4, §4).

A page is made of ids and payloads as they were read, or of items of the Avro reply, which is what
tails hold; the one is made of the other when a form needs it. Readers that ask for the same get the
same page, and each form of it is made once.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from messaging.columns import Columns
from tuff.protocol import avro
from tuff.protocol.errors import NotAcceptableError
from tuff.protocol.forms import payload_to_json


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
        from messaging.arrow import encode
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
