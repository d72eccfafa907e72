"""Names for what differs from run to run, or can't be read: pointers, message ids and times.

A script calls transactions by a letter, and counts every time in seconds from its own beginning:
`+1.500/3` is the fourth row written in that millisecond, and `+1.500/3[+1.000/0]` the message that
this row brings and that was stored at `+1.000/0`.
"""

import re
from collections.abc import Iterable

from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.transaction import POINTERS_PER_MS

START_MS = 1_480_000_000_000  # ms since the epoch; where the time of every script begins

_POINTER = re.compile(r"\b\d{19}\b")
_MESSAGE_ID = re.compile(r"\b[0-9a-f]{40}\b")
_TIME = re.compile(r"\b1[34]\d{11}\b")
_ID = re.compile(r"([+-][\d.]+)/(\d+)(?:\[([+-][\d.]+)/(\d+)\])?")


def shown_time(time_ms: int) -> str:
    sign, count = ("+", time_ms - START_MS) if time_ms >= START_MS else ("-", START_MS - time_ms)
    return f"{sign}{count // 1000}.{count % 1000:03}"


def time_of(text: str) -> int:
    """The time in ms of `+1.5`, in seconds from the script's beginning."""
    return START_MS + round(float(text.removesuffix("s")) * 1000)


def shown_place(timestamp_ms: int, seq_id: int) -> str:
    return f"{shown_time(timestamp_ms)}/{seq_id}"


def shown_range(first: Offset, last: Offset) -> str:
    """The offsets of the rows of one publish."""
    shown = shown_place(*first)
    return shown if first == last else f"{shown} .. {shown_place(*last)}"


def shown_id(digits: str) -> str:
    """The short name of a message id in hex."""
    found = MessageId.from_hex(digits)
    shown = shown_place(*found.offset)
    if not found.write_timestamp_ms:
        return shown
    return f"{shown}[{shown_place(found.write_timestamp_ms, found.payload_seq_id)}]"


def id_of(text: str) -> str:
    """The message id in hex that a short name stands for."""
    found = _ID.fullmatch(text)
    assert found is not None, f"{text!r} is no message: write it as +1.500/3"
    time, seq, stored, stored_seq = found.groups()
    stored_at = (time_of(stored), int(stored_seq)) if stored else (0, 0)
    return MessageId(time_of(time), int(seq), *stored_at).hex()


class Pointers:
    """Which pointer has which name. Those that a script did not name have none."""

    def __init__(self) -> None:
        self._pointers: dict[str, int] = {}
        self._names = {START_MS * POINTERS_PER_MS: "nothing"}

    def put(self, name: str, pointer: int) -> None:
        self._pointers[name] = pointer
        self._names[pointer] = name

    def __getitem__(self, name: str) -> int:
        assert name in self._pointers, f"this script has begun no transaction {name!r} yet"
        return self._pointers[name]

    def next_checkpoint(self, name: str) -> str:
        """The name of the next pointer of a transaction: `a.1` after `a`."""
        count = sum(each.startswith(f"{name}.") for each in self._pointers)
        return f"{name}.{count + 1}"

    def shown(self, pointer: int | str) -> str:
        return self._names.get(int(pointer), "an unnamed transaction")

    def shown_list(self, pointers: Iterable[int | str]) -> str:
        """The names in a list, and whether it holds others: how many depends on how far ahead
        pointers are reserved, which no script is about."""
        numbers = [int(pointer) for pointer in pointers]
        named = [self._names[number] for number in numbers if number in self._names]
        others = ["(and others)"] if len(named) < len(numbers) else []
        return " ".join([*named, *others]) or "-"

    def told(self, sentence: str) -> str:
        """A sentence of the server, with names in the place of numbers."""
        sentence = _MESSAGE_ID.sub(lambda found: shown_id(found[0]), sentence)
        sentence = _POINTER.sub(lambda found: self.shown(found[0]), sentence)
        return _TIME.sub(lambda found: shown_time(int(found[0])), sentence)
