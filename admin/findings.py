"""What the offline tools report: findings, decisions, and the errors that end a command."""

from dataclasses import dataclass


class RefusedError(Exception):
    """The command can't run with these paths or data; the sentence says why, and what to do."""


class StoreMissingError(RefusedError):
    """A data directory lacks a store. Commands that have the option (its name without dashes) also
    show the advice."""

    def __init__(self, sentence: str, *, option: str, advice: str) -> None:
        super().__init__(sentence)
        self.option = option
        self.advice = advice


class CorruptDataError(Exception):
    """The data that is to be copied is corrupt; the sentence says how much, and what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation from what was written. `is_corruption` is False for what may be corruption and
    may as well be in order, as a write that a crash cut off."""

    location: str
    reason: str
    advice: str
    is_corruption: bool = True


@dataclass(frozen=True, slots=True)
class SalvageDecision:
    """Something that corruption left open, and how salvage decided it."""

    location: str
    reason: str
