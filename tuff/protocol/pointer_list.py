"""Sorted, immutable lists of write pointers whose versions share chunks (design §4).

Every start returns the lists of the transactions in progress and of the invalid ones, and must be
fast with ten thousand entries. So a list consists of chunks: a new version shares all chunks except
the changed one, and each chunk caches its encoded form.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

CHUNK_COUNT_MAX = 512  # pointers; a change copies one chunk, and the list of chunks
POINTER_MAX = (1 << 63) - 1


class _Chunk:
    __slots__ = ("_json", "_packed", "values")

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = values
        self._packed: bytes | None = None
        self._json: bytes | None = None

    def json(self) -> bytes:
        if self._json is None:
            self._json = b'"%b"' % '","'.join(map(str, self.values)).encode("ascii")
        return self._json

    def packed(self) -> bytes:
        if self._packed is None:
            self._packed = struct.pack(f">{len(self.values)}q", *self.values)
        return self._packed


class PointerList(Sequence[int]):
    """An ascending list of distinct pointers; `with_added` and `without` return new lists.

    Safe to share between threads: its visible content never changes.
    """

    __slots__ = ("_chunks", "_firsts", "_size")

    def __init__(self, pointers: Iterable[int] = ()) -> None:
        values = iter(sorted(set(pointers)))
        chunks = []
        while chunk := tuple(islice(values, CHUNK_COUNT_MAX)):
            chunks.append(_Chunk(chunk))
        self._set_all(tuple(chunks))

    def _set_all(self, chunks: tuple[_Chunk, ...]) -> "PointerList":
        size = sum([len(chunk.values) for chunk in chunks])
        return self._set(chunks, [chunk.values[0] for chunk in chunks], size)

    def _set(self, chunks: tuple[_Chunk, ...], firsts: list[int], size: int) -> "PointerList":
        self._chunks, self._firsts, self._size = chunks, firsts, size
        return self

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks:
            yield from chunk.values

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        place = index + self._size if index < 0 else index
        if place >= 0:
            for chunk in self._chunks:
                if place < len(chunk.values):
                    return chunk.values[place]
                place -= len(chunk.values)
        raise IndexError(index)

    def __contains__(self, pointer: object) -> bool:
        if not isinstance(pointer, int) or not self._chunks:
            return False
        values = self._chunks[self._chunk_of(pointer)].values
        index = bisect_left(values, pointer)
        return index < len(values) and values[index] == pointer

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(self) == len(other) and all(
                mine == theirs for mine, theirs in zip(self, other, strict=True)
            )
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PointerList({list(self)!r})"

    def with_added(self, pointer: int) -> "PointerList":
        """This list with one more pointer."""
        if not self._chunks:
            return PointerList((pointer,))
        # Nearly always it is that of a new transaction, above all others.
        newest = self._chunks[-1].values
        if pointer > newest[-1] and len(newest) < CHUNK_COUNT_MAX:
            chunks = (*self._chunks[:-1], _Chunk((*newest, pointer)))
            made = PointerList.__new__(PointerList)
            return made._set(chunks, self._firsts, self._size + 1)  # noqa: SLF001 - of the same class
        if pointer in self:
            return self
        index = self._chunk_of(pointer)
        values = self._chunks[index].values
        at = bisect_left(values, pointer)
        grown = (*values[:at], pointer, *values[at:])
        if len(grown) <= CHUNK_COUNT_MAX:
            return self._replaced(index, grown)
        # A list that grows at its end, like that of transactions in progress, keeps its chunks
        # full.
        cut = CHUNK_COUNT_MAX if at == len(values) else CHUNK_COUNT_MAX // 2
        return self._replaced(index, grown[:cut], grown[cut:])

    def without(self, pointers: Iterable[int]) -> "PointerList":
        """This list without these pointers; pointers that it does not contain are ignored."""
        if len(self._chunks) == 1:  # nearly always: few are in progress
            gone = set(pointers)
            kept = tuple([value for value in self._chunks[0].values if value not in gone])
            if len(kept) == self._size:
                return self
            return self._of((_Chunk(kept),) if kept else ())
        gone_by_chunk: dict[int, set[int]] = {}
        for pointer in pointers:
            if pointer in self:
                gone_by_chunk.setdefault(self._chunk_of(pointer), set()).add(pointer)
        if not gone_by_chunk:
            return self
        chunks = list(self._chunks)
        for index, gone in gone_by_chunk.items():
            values = chunks[index].values
            if len(gone) == 1:  # nearly always: one transaction ended
                at = bisect_left(values, *gone)
                kept = values[:at] + values[at + 1 :]
            else:
                kept = tuple([value for value in values if value not in gone])
            chunks[index] = _Chunk(kept)
        return self._of(tuple(chunk for chunk in chunks if chunk.values))

    def difference(self, older: "PointerList") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The pointers that were added since an older version, and those that were removed,
        ascending. Chunks that both share are not compared."""
        if self is older:
            return (), ()
        if not older:
            return tuple(self), ()
        mine, theirs = set(self._chunks), set(older._chunks)  # noqa: SLF001 - of the same class
        fresh, stale = mine - theirs, theirs - mine
        if len(fresh) == len(stale) == 1:  # nearly always: the list grew at its end
            (after,), (before,) = fresh, stale
            count = len(before.values)
            if after.values[:count] == before.values:
                return after.values[count:], ()
        held = {value for chunk in fresh for value in chunk.values}
        gone = {value for chunk in stale for value in chunk.values}
        return tuple(sorted(held - gone)), tuple(sorted(gone - held))

    def packed(self) -> bytes:
        """The pointers as big-endian 64-bit integers, one after the other."""
        return b"".join(chunk.packed() for chunk in self._chunks)

    def json(self) -> bytes:
        """The pointers as a JSON array of decimal strings."""
        return b"[%b]" % b",".join([chunk.json() for chunk in self._chunks])

    def _chunk_of(self, pointer: int) -> int:
        return max(0, bisect_left(self._firsts, pointer + 1) - 1)

    def _replaced(self, index: int, *parts: tuple[int, ...]) -> "PointerList":
        fresh = tuple(_Chunk(part) for part in parts)
        return self._of((*self._chunks[:index], *fresh, *self._chunks[index + 1 :]))

    @staticmethod
    def _of(chunks: tuple[_Chunk, ...]) -> "PointerList":
        return PointerList.__new__(PointerList)._set_all(chunks)  # noqa: SLF001 - of the same class


def holds(pointers: Sequence[int], pointer: int) -> bool:
    """Whether an ascending list contains this pointer."""
    if isinstance(pointers, PointerList):
        return pointer in pointers
    index = bisect_left(pointers, pointer)
    return index < len(pointers) and pointers[index] == pointer


def packed(pointers: Sequence[int]) -> bytes:
    """The pointers as big-endian 64-bit integers, one after the other."""
    if isinstance(pointers, PointerList):
        return pointers.packed()
    return struct.pack(f">{len(pointers)}q", *pointers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityState:
    """The part of the transaction state that retention needs: the pointers and lists of one moment
    (design §6).

    `source` names the newest snapshot file, for the log of a retention pass; None before the first.
    """

    read_pointer: int
    write_pointer: int
    in_progress: PointerList
    invalid: PointerList
    source: str | None
