"""Decorators of values, which are dataclasses, and annotations of their fields.

Those that are made for every request are cheap to make. A frozen dataclass sets each field by a
call with the field's name, so making one takes three times as long; a transaction makes a dozen
values with some eighty fields. So a `value` is frozen only for the type checker, which refuses code
that sets a field. A value that users get is a `frozen_value`: setting a field raises, and its
constructor sets the slots directly, in half of the time of a frozen dataclass.

The annotations say what form a field has in JSON, where its type and its name do not
(`tuff.protocol.json_objects`).
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """The name of the member that a field is; `a.b`: of a member of the member `a`. Empty: the
    field takes several members of the object."""

    path: str


@dataclass(frozen=True, slots=True)
class TopicNames:
    """A topic has two members: `namespace`, and one with this name."""

    name: str


@dataclass(frozen=True, slots=True)
class PointerCodec:
    """A number is written as a pointer: decimal digits in a string."""


@dataclass(frozen=True, slots=True)
class HeadersCodec:
    """Headers are written as those of a message: an object."""


Pointer = Annotated[int, PointerCodec()]
Headers = Annotated[tuple[tuple[str, bytes], ...], HeadersCodec()]


@dataclass_transform(frozen_default=True)
def value(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """A `dataclass(frozen=True, slots=True)` in which setting a field does not raise."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)


@dataclass_transform(frozen_default=True)
def frozen_value(*, kw_only: bool = False, order: bool = False) -> Callable[[type[T]], type[T]]:
    """A `dataclass(frozen=True, slots=True)` with a faster constructor. No default factories."""

    def made(described: type[T]) -> type[T]:
        kind = dataclass(frozen=True, slots=True, kw_only=kw_only, order=order)(described)
        kind.__init__ = _quick_init(kind, kw_only=kw_only)  # type: ignore[method-assign]  # the faster constructor
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
    """An enum to which a later server may add members. An unknown string becomes a value that
    equals the string and is not listed as a member."""

    @classmethod
    def _missing_(cls, value: object) -> "OpenStrEnum | None":
        if not isinstance(value, str):
            return None
        added = str.__new__(cls, value)
        added._name_ = value.upper()
        added._value_ = value
        return added
