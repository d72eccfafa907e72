"""Typed MessagePack: how values are written to the transaction files, and read with type checks.

A file passes its checksum before it is decoded here. What still doesn't fit was written by another
program or another version, and is refused rather than guessed at (design §4).
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgpack

from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT
from tuff.protocol.pointers import POINTER_MAX

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

ITEMS_MAX = 1 << 26  # entries of one list; a frame holds no more, and a longer count is damage


class MalformedError(Exception):
    """The checksum is right, and the content is nothing that any version writes."""


class NewerError(MalformedError):
    """The checksum is right, and the content is something that only a newer version knows."""


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How one value is encoded as plain MessagePack data, and decoded or refused with
    MalformedError. `bounds` are the least and the greatest value of an integer that is encoded
    unchanged."""

    pack: Callable[[T], object]
    unpack: Callable[[object], T]
    bounds: tuple[int, int] | None = None


def to_bytes(data: object) -> bytes:
    packed = _PACKERS.pack(data)
    assert isinstance(packed, bytes)
    return packed


class _Packers(threading.local):
    """A packer for each thread: to make one takes longer than to pack an edit."""

    def __init__(self) -> None:
        packer = msgpack.Packer(use_bin_type=True)
        self.pack = packer.pack
        self.head = packer.pack_array_header


_PACKERS = _Packers()


def joined(*packed: bytes) -> bytes:
    """The list of values that are packed already."""
    head = _PACKERS.head(len(packed))
    assert isinstance(head, bytes)
    return head + b"".join(packed)


def from_bytes(data: bytes) -> object:
    """Raises: MalformedError: not one MessagePack value, or not in plain types."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedError(f"not MessagePack: {error}") from None


def integer(*, minimum: int = 0, maximum: int = POINTER_MAX) -> Form[int]:
    def unpack(data: object) -> int:
        if type(data) is not int or not minimum <= data <= maximum:  # True is none here
            raise MalformedError(f"{data!r} is no number from {minimum} to {maximum}")
        return data

    return Form(int, unpack, (minimum, maximum))


def _unpack_flag(data: object) -> bool:
    if not isinstance(data, bool):
        raise MalformedError(f"{data!r} is neither true nor false")
    return data


def _unpack_text(data: object) -> str:
    if not isinstance(data, str):
        raise MalformedError(f"a text was expected, not {type(data).__name__}")
    return data


def _unpack_blob(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise MalformedError(f"bytes were expected, not {type(data).__name__}")
    return data


POINTER = integer()
COUNT = integer()
TIME_MS = integer(maximum=TIMESTAMP_LIMIT - 1)
SEQ_ID = integer(maximum=SEQ_ID_LIMIT - 1)
FLAG: Form[bool] = Form(bool, _unpack_flag)
TEXT: Form[str] = Form(str, _unpack_text)
BLOB: Form[bytes] = Form(bytes, _unpack_blob)


def as_it_is(value: object) -> object:
    """Pack a value that is MessagePack data already; a tuple of any class becomes a list."""
    return value


_PLAIN = (int, bool, str, bytes, as_it_is)


def optional(form: Form[T]) -> Form[T | None]:
    return Form(
        as_it_is
        if form.pack in _PLAIN
        else lambda value: None if value is None else form.pack(value),
        lambda data: None if data is None else form.unpack(data),
    )


def tuple_of(form: Form[T]) -> Form[tuple[T, ...]]:
    return Form(
        as_it_is if form.pack in _PLAIN else lambda values: list(map(form.pack, values)),
        lambda data: tuple(form.unpack(item) for item in items(data)),
    )


def _unpack_keys(data: object) -> frozenset[bytes]:
    blobs = items(data)
    if not set(map(type, blobs)) <= {bytes}:
        raise MalformedError("a change is no bytes")
    keys: frozenset[bytes] = frozenset(blobs)  # type: ignore[arg-type] # of bytes alone
    if len(keys) != len(blobs):
        raise MalformedError("a change stands twice in one change set")
    return keys


# Sorted, so that the same edit has the same bytes in every process.
KEYS: Form[frozenset[bytes]] = Form(sorted, _unpack_keys)


def enum_of(kind: type[E]) -> Form[E]:
    def unpack(data: object) -> E:
        try:
            return kind(data)
        except ValueError:
            error = NewerError if isinstance(data, str) else MalformedError
            raise error(f"{data!r} is no {kind.__name__}") from None

    # What `value` returns, without the descriptor in Python that costs more than all the rest.
    return Form(attrgetter("_value_"), unpack)


def record(kind: type[T], *forms: Form[Any]) -> Form[T]:
    """Encode a dataclass as the list of its fields, in their order."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type] # only dataclasses
    assert len(names) == len(forms), f"{kind.__name__} has {len(names)} fields"
    unpacks = [form.unpack for form in forms]
    # A snapshot packs a hundred thousand records, and most fields of each travel as they are.
    values_of = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    changed = [(index, form.pack) for index, form in enumerate(forms) if form.pack not in _PLAIN]

    def pack(value: T) -> object:
        row = list(values_of(value))
        for index, to_data in changed:
            row[index] = to_data(row[index])
        return row

    def unpack(data: object) -> T:
        values = items(data, count=len(names))
        unpacked = [to_value(v) for to_value, v in zip(unpacks, values, strict=True)]
        return kind(**dict(zip(names, unpacked, strict=True)))

    return Form(pack if changed else values_of, unpack)


def check_rows(rows: Sequence[object], forms: Sequence[Form[Any]]) -> None:
    """Check many records as unpacking each of them would, but column by column, at a tenth of the
    cost. Raises: MalformedError."""
    if not rows:
        return
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {len(forms)}:  # type: ignore[arg-type] # lists
        for row in rows:
            items(row, count=len(forms))
    for form, column in zip(forms, zip(*rows, strict=True), strict=True):
        for data in _distinct(form, column):
            form.unpack(data)


def _distinct(form: Form[Any], column: Sequence[object]) -> Iterable[object]:
    """As many of these values as are needed to know whether all can be unpacked."""
    kinds = set(map(type, column))
    if form.bounds is not None and kinds == {int}:
        return min(column), max(column)  # type: ignore[type-var] # integers
    if kinds <= {str, type(None)}:  # the same few names again and again
        return set(column)
    if kinds == {list}:
        full = [data for data in column if data]  # few have anything in them
        return full if len(full) == len(column) else [*full, []]
    return column


def rows_of(packed: Sequence[bytes]) -> list[list[Any]]:
    """The fields of records that were packed, or checked, by this process."""
    rows: list[list[Any]] = msgpack.unpackb(joined(*packed), raw=False, use_list=True)
    return rows


def items(data: object, *, count: int | None = None) -> list[object]:
    """The entries of a list; `count` None takes any number of them. Raises: MalformedError."""
    if not isinstance(data, list) or len(data) > ITEMS_MAX:
        raise MalformedError(f"a list was expected, not {type(data).__name__}")
    if count is not None and len(data) != count:
        raise MalformedError(f"a list of {count} entries was expected, and this has {len(data)}")
    return data
