"""What is wrong in files, for people: where, how it shows, and what to do or what was done."""

from dataclasses import dataclass

NEWER = "use the version of tuff that wrote it, or a later one"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was written. `is_damage` is False for what may be damage and may
    as well be in order, as a write that a crash cut off."""

    place: str
    reason: str
    advice: str
    is_damage: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that damage left open, and how it was decided."""

    place: str
    reason: str
