"""The part of the transaction state that retention needs (design §6)."""

from dataclasses import dataclass

from tuff.protocol.pointers import PointerList


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityState:
    """Pointers and the invalid list of one moment.

    `source` names the newest snapshot file, for the record of what a retention pass used; None
    before the first.
    """

    read_pointer: int
    write_pointer: int
    in_progress: PointerList
    invalid: PointerList
    source: str | None
