"""Ids and payloads of messages as they were read: in lists, and in stretches of stored runs.

A form that takes all payloads at once, as Arrow does, takes a stretch as it lies in its run, and
makes no object of a message. Who asks for lists gets lists.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from messaging.keys import PLACE_SIZE, SEQ_SIZE
from messaging.runs import OpenRun

NO_PAYLOAD = bytes(PLACE_SIZE)  # the second half of the id of an inline message


class IdParts(NamedTuple):
    """What stands in ids before and behind the place at the end of a row's key."""

    front: bytes
    back: bytes


OF_MESSAGES = IdParts(b"", NO_PAYLOAD)


@dataclass(frozen=True, slots=True)
class Listed:
    """Messages one by one."""

    ids: list[bytes]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))

    def sizes(self) -> bytes:
        """The size of each payload, in four bytes, big-endian."""
        return struct.pack(f">{len(self.payloads)}I", *map(len, self.payloads))

    def joined_ids(self) -> bytes:
        return b"".join(self.ids)

    def joined_payloads(self) -> bytes | memoryview:
        return b"".join(self.payloads)

    def lists(self) -> tuple[list[bytes], list[bytes]]:
        return self.ids, self.payloads

    @property
    def last_id(self) -> bytes:
        return self.ids[-1]

    def first(self, count: int) -> "Listed":
        return Listed(self.ids[:count], self.payloads[:count])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbours in a run, from one of its rows to another, whose payloads lie between two bytes of
    its value. All of them are of one millisecond."""

    run: OpenRun
    start: int
    stop: int
    start_byte: int
    stop_byte: int
    parts: IdParts

    @classmethod
    def of(cls, run: OpenRun, start: int, stop: int, parts: IdParts) -> "Stretch":
        if start == 0 and stop == run.length:
            return cls(run, start, stop, run.payloads_at, len(run.value), parts)
        bounds = run.bounds()
        return cls(run, start, stop, bounds[start], bounds[stop], parts)

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def size_bytes(self) -> int:
        return self.stop_byte - self.start_byte

    def sizes(self) -> bytes:
        return self.run.sizes(self.start, self.stop)

    def joined_ids(self) -> bytes:
        before, seqs, back = self._ids()
        return before + (back + before).join(seqs) + back

    def joined_payloads(self) -> bytes | memoryview:
        return memoryview(self.run.value)[self.start_byte : self.stop_byte]

    def lists(self) -> tuple[list[bytes], list[bytes]]:
        before, seqs, back = self._ids()
        bounds = self.run.bounds()[self.start : self.stop + 1]
        payloads = [self.run.value[start:stop] for start, stop in pairwise(bounds)]
        return [before + seq + back for seq in seqs], payloads

    def first(self, count: int) -> "Stretch":
        return self.of(self.run, self.start, self.start + count, self.parts)

    @property
    def last_id(self) -> bytes:
        place = (self.run.number + self.stop - 1).to_bytes(PLACE_SIZE, "big")
        return self.parts.front + place + self.parts.back

    def _ids(self) -> tuple[bytes, Sequence[bytes], bytes]:
        place = (self.run.number + self.start).to_bytes(PLACE_SIZE, "big")
        first = int.from_bytes(place[-SEQ_SIZE:], "big")
        front, back = self.parts
        return front + place[:-SEQ_SIZE], _all_seqs()[first : first + len(self)], back


@cache
def _all_seqs() -> list[bytes]:
    # Some three megabytes, for who reads runs: half of what an id costs that is made anew.
    return [number.to_bytes(SEQ_SIZE, "big") for number in range(1 << 8 * SEQ_SIZE)]


class Columns:
    """Grows at its end, and is cut there. `pieces` are for who takes them as they are."""

    __slots__ = ("_count", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Listed | Stretch] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def last_id(self) -> bytes:
        return self.pieces[-1].last_id

    def add(self, ids: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        if not ids:
            return
        if not self.pieces or not isinstance(self.pieces[-1], Listed):
            self.pieces.append(Listed([], []))
        piece = self.pieces[-1]
        assert isinstance(piece, Listed)
        piece.ids.extend(ids)
        piece.payloads.extend(payloads)
        self._count += len(ids)

    def add_stretch(self, stretch: Stretch) -> None:
        self.pieces.append(stretch)
        self._count += len(stretch)

    def cut(self, count: int) -> None:
        """Keep no more than the first ones."""
        while self._count > count:
            piece = self.pieces.pop()
            self._count -= len(piece)
            if self._count < count:
                self.pieces.append(piece.first(count - self._count))
                self._count = count

    def size_bytes(self) -> int:
        """The bytes of all payloads."""
        return sum(piece.size_bytes for piece in self.pieces)

    def lists(self) -> tuple[list[bytes], list[bytes]]:
        """All 20-byte ids, and all payloads."""
        if len(self.pieces) == 1:
            return self.pieces[0].lists()
        ids: list[bytes] = []
        payloads: list[bytes] = []
        for piece in self.pieces:
            more_ids, more_payloads = piece.lists()
            ids += more_ids
            payloads += more_payloads
        return ids, payloads
