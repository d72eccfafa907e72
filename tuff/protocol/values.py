"""Values that are made for every request: dataclasses that the type checker alone holds frozen.

A frozen dataclass sets each field with a call of its own, which makes it take twice as long to make
one; a transaction makes a dozen of them, with some eighty fields. Nothing changes one of these, and
mypy refuses whoever tries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """As `dataclass(frozen=True, slots=True)`, but for what happens at run time to who sets a
    field."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)
