"""The messages of the audit topic: what is recorded, and how often (decision 0046, Audit).

    act       := the members of `Act.body`, as one JSON object

Administrative acts that succeed are recorded one by one. What a client can repeat for ever, which
is refused and failed calls, is recorded at a bounded rate.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from access.principals import Principal, Principals
from tuff.protocol.ids import NAME_LENGTH_MAX
from tuff.protocol.operations import (
    ABORT,
    COMMIT,
    GET_SNAPSHOT_FILE,
    INVALIDATE,
    PREPARE,
    RESOLVE,
    TAKE_BACKUP,
    Operation,
    Right,
)

FAILURES_WINDOW_MS = 60_000
# Kinds of failed calls of one principal, or of all clients without one, in a window. Each is at
# most two messages, the others together are one, so these are 41 in a minute: about 20 MB in a day.
FAILURE_KINDS_MAX = 20

OK = "ok"  # the result of a call that succeeded; others are codes of errors

_COPIES = frozenset({TAKE_BACKUP, GET_SNAPSHOT_FILE})
# They end or prepare the transaction of the path, which is recorded where it belongs to another
# principal.
END_TRANSACTIONS = frozenset({ABORT, INVALIDATE, COMMIT, PREPARE, RESOLVE})
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class ActKind(StrEnum):
    """What was done: an administrative call, a refused call, a new access file, a start."""

    ADMINISTRATION = "administration"
    REFUSAL = "refusal"
    ACCESS_FILE = "access_file"
    START = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One message of the audit topic, or `count` equal acts since `at_ms`.

    `principal` None: none was found, or the server itself acts. `operation` None: acts of more
    kinds than are told apart. `parameters` are those of the path. `more`: other members of the
    message.
    """

    kind: ActKind
    at_ms: int
    principal: str | None = None
    operation: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    result: str = OK
    address: str = ""
    traceparent: str | None = None
    count: int = 1
    more: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """The message as a JSON object, in bounded size. It has no payload, token or hash."""
        trace = self.traceparent
        return {
            "time": self.at_ms,
            "kind": self.kind,
            "principal": self.principal,
            "operation": self.operation,
            "parameters": {name: _bounded(value) for name, value in self.parameters.items()},
            "result": self.result,
            "count": self.count,
            "address": self.address,
            # A client can send any text, also a secret.
            "traceparent": trace if trace and _TRACE_PARENT.fullmatch(trace) else None,
            **self.more,
        }


class Failures:
    """Bounds how many messages refused and failed calls make. Lives on one event loop.

    The first of a kind in a window is recorded at once, and the others as one message at its end.
    """

    def __init__(self, *, now_ms: int) -> None:
        self._counts: dict[str | None, dict[object, Act]] = {}  # repeated acts, with their count
        self._began_ms = now_ms

    def note(self, act: Act) -> Act | None:
        """The message to write now; None: the act is counted."""
        counts = self._counts.setdefault(act.principal, {})
        key: object = (act.operation, *act.parameters.values(), act.result, act.address)
        if key not in counts and len(counts) < FAILURE_KINDS_MAX:
            counts[key] = replace(act, count=0)
            return act
        if key not in counts:
            key, act = None, replace(act, operation=None, parameters={}, address="", count=0)
        found = counts.get(key, act)
        at_ms = found.at_ms if found.count else act.at_ms
        counts[key] = replace(found, at_ms=at_ms, count=found.count + 1)
        return None

    def ended(self, *, now_ms: int) -> Sequence[Act]:
        """The messages at the end of a window; empty before it."""
        if 0 <= now_ms - self._began_ms < FAILURES_WINDOW_MS:
            return ()
        self._began_ms = now_ms
        return self.rest()

    def rest(self) -> Sequence[Act]:
        """What was counted and not yet recorded; it is forgotten here."""
        counted = [act for counts in self._counts.values() for act in counts.values() if act.count]
        self._counts.clear()
        return counted


def is_administrative(operation: Operation) -> bool:
    """Whether an allowed call of it is recorded: it changes what is not a principal's own, or
    copies everything."""
    if operation.method == "GET":
        return operation in _COPIES
    return not {Right.CREATE, Right.ADMINISTER}.isdisjoint(operation.access.rights)


def changes(before: Principals, after: Principals) -> Iterator[str]:
    """What an access file gives that it did not give before, and the other way round. No hash is
    shown."""
    for name in sorted(before.by_name.keys() | after.by_name.keys()):
        old, new = before.by_name.get(name), after.by_name.get(name)
        if old is None or new is None:
            yield f"principal {name} was {'added' if old is None else 'removed'}"
            continue
        yield from _changed_keys(before, after, old, new)
        for right in sorted(set(_rights(old)) - set(_rights(new))):
            yield f"{name} lost {right}"
        for right in sorted(set(_rights(new)) - set(_rights(old))):
            yield f"{name} got {right}"
        if old.quota != new.quota:
            yield f"the quotas of {name} were changed"
        if old.tenant != new.tenant:
            yield f"the tenant of {name} was {old.tenant or 'none'}, and is {new.tenant or 'none'}"


def _changed_keys(
    before: Principals, after: Principals, old: Principal, new: Principal
) -> Iterator[str]:
    for what, was, now in (
        ("tokens", _keys(before.by_token_hash, old), _keys(after.by_token_hash, new)),
        ("certificates", _keys(before.by_certificate, old), _keys(after.by_certificate, new)),
    ):
        if was != now:
            yield f"{what} of {new.name}: {len(now - was)} added, {len(was - now)} removed"


def _keys(by_key: Mapping[str, Principal], principal: Principal) -> set[str]:
    return {key for key, each in by_key.items() if each.name == principal.name}


def _rights(principal: Principal) -> Iterator[str]:
    for each in principal.rights:
        for topic in each.topics:
            for right in each.allow:
                yield f"{right} on {each.namespace}:{topic}"


def _bounded(value: str) -> str:
    return value if len(value) <= NAME_LENGTH_MAX else value[:NAME_LENGTH_MAX] + "…"
