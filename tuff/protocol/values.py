"""Values that are made for every request: dataclasses that cost little to make.

A frozen dataclass sets each field with a call that looks its name up, which makes it take three
times as long to make one; a transaction makes a dozen of them, with some eighty fields. So a
`value` is held frozen by the type checker alone, which refuses code that sets a field. What a
program of a user gets to see is a `frozen_value`: it refuses at run time, and its fields are set
by their slots, which costs half of what it costs in a frozen dataclass.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """As `dataclass(frozen=True, slots=True)`, but code that sets a field is not refused at run
    time."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)


@dataclass_transform(frozen_default=True)
def frozen_value(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """As `dataclass(frozen=True, slots=True)`, and quicker to make. Defaults are values, not
    factories."""

    def made(described: type[T]) -> type[T]:
        kind = dataclass(frozen=True, slots=True, kw_only=kw_only)(described)
        kind.__init__ = _quick_init(kind, kw_only=kw_only)  # type: ignore[method-assign]  # it is what is quicker
        return kind

    return made


def _quick_init(kind: type, *, kw_only: bool) -> Callable[..., None]:
    found: list[Any] = list(fields(kind))
    names: dict[str, Any] = {f"set_{one.name}": getattr(kind, one.name).__set__ for one in found}
    names |= {f"default_{one.name}": one.default for one in found}
    parameters = ["self", *(["*"] if kw_only else [])]
    for one in found:
        assert one.default_factory is MISSING, "a default is a value"
        default = "" if one.default is MISSING else f"=default_{one.name}"
        parameters.append(one.name + default)
    lines = [f"    set_{one.name}(self, {one.name})" for one in found]
    exec("\n".join([f"def __init__({', '.join(parameters)}):", *lines]), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    return init


class OpenStrEnum(StrEnum):
    """An enum to which a later server may add members: another string becomes a value that is equal
    to that string, and is no member."""

    @classmethod
    def _missing_(cls, value: object) -> "OpenStrEnum | None":
        if not isinstance(value, str):
            return None
        added = str.__new__(cls, value)
        added._name_ = value.upper()
        added._value_ = value
        return added
