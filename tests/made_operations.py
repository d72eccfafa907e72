"""Operations for routes of tests: those of the protocol, and some that it does not have."""

from urllib.parse import unquote

from tuff.protocol.operations import (
    OPERATIONS,
    Access,
    Operation,
    Scope,
    call_between_servers,
)

BY_LINE = {str(each): each for each in OPERATIONS}
_BETWEEN_SERVERS = "POST /v1/cluster/"


def made(method: str, path: str) -> Operation:
    """The operation with this method and path; a new one where the protocol has none."""
    line = f"{method} {path}"
    if line in BY_LINE:
        return BY_LINE[line]
    if line.startswith(_BETWEEN_SERVERS):
        return call_between_servers(line.removeprefix(_BETWEEN_SERVERS))
    access = Access(Scope.OPEN)
    return Operation(
        name="made", method=method, path=path, tag="process", summary="", access=access
    )


def found(method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
    """The operation of the protocol that serves a path, and its parameters. A fixed segment wins.

    Raises: LookupError: no operation serves it.
    """
    segments = path.split("/")
    fits = [
        (each, values)
        for each in OPERATIONS
        if each.method == method and (values := _values(each, segments)) is not None
    ]
    if not fits:
        raise LookupError(f"{method} {path}")
    return min(fits, key=lambda each: len(each[1]))


def _values(operation: Operation, segments: list[str]) -> tuple[str, ...] | None:
    pattern = operation.path.split("/")
    pairs = list(zip(pattern, segments, strict=False))
    if len(pattern) != len(segments) or any(a != b for a, b in pairs if not a.startswith("{")):
        return None
    return tuple(unquote(value) for name, value in pairs if name.startswith("{"))
