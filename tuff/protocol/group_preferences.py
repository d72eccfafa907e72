"""The preferences of a consumer group: how its members consume (protocol §3.11). Pure.

    preferences := {"start": "earliest" | "latest" | null, "isolation": "committed" | "all" | null,
                    "tags": text | null, "retry": retry | null, "deadLetters": topic | null}
    retry       := {"delays": [seconds, …], "inOrder": true | false}

The server keeps them in this form, in the row of the topic that is the group's log.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Literal

import orjson

from tuff.protocol.attributes import TagFilter
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.ids import check_name
from tuff.protocol.json_bodies import choice_from_json, flag_from_json, shown, text_from_json
from tuff.protocol.requests import Isolation, IsolationLike

DELAY_COUNT_MAX = 100
DELAY_S_MAX = 86_400.0 * 7  # seconds; a message waits no longer than topics keep theirs by default


class GroupStart(StrEnum):
    """Where a group begins in a topic: at the oldest message, or behind the newest one."""

    EARLIEST = "earliest"
    LATEST = "latest"


GroupStartLike = GroupStart | Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What a consumer does with a message that it could not process.

    It tries the message again after each of the `delays` (seconds, 0 to seven days, up to 100 of
    them), and gives it up after the last: it becomes a dead letter in `<topic>.dlq`. So there are
    `len(delays) + 1` attempts. The message waits in `<topic>.retry`, and holds nothing up.

    `in_order`: it waits in its place instead, and its partition with it. So the messages of each
    key are processed in their order, and none while an earlier one has to be tried again.

    `outage`: classes of errors by which the consumer's function says that what it works with is
    away, as `(OperationalError,)`. The consumer waits until that is over, and counts no attempt.
    """

    delays: Sequence[Duration] = (10, 30, 60, 300, 600)
    in_order: bool = False
    outage: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        check_outage(self.outage)
        if isinstance(self.delays, str | bytes) or not isinstance(self.delays, Sequence):
            raise TypeError(f"delays are seconds in a list, as (10, 60, 600), not {self.delays!r}")
        if len(self.delays) > DELAY_COUNT_MAX:
            raise ValueError(f"there are {DELAY_COUNT_MAX} delays at most, not {len(self.delays)}")
        for each in self.delays:
            if seconds_of(each, what="a delay") > DELAY_S_MAX:
                raise ValueError(f"a delay is at most {DELAY_S_MAX:.0f} seconds, not {each}")

    def delay_s(self, attempts: int) -> float | None:
        """How long to wait after so many failed attempts; None: give the message up."""
        if attempts > len(self.delays):
            return None
        return seconds_of(self.delays[attempts - 1], what="a delay")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPreferences:
    """How the members of a consumer group consume. None: the group says nothing about it.

    `start`: where the group begins in a topic that it subscribes to for the first time.
    `isolation`, `tags`: which messages members read, as in `poll`. `retry`: what becomes of
    messages that fail. `dead_letters`: the topic for those that are given up, in the namespace of
    the group, in place of `<topic>.dlq`.

    Raises: BadRequestError, TypeError: a value is not valid; InvalidNameError.
    """

    start: GroupStartLike | None = None
    isolation: IsolationLike | None = None
    tags: str | None = None
    retry: RetryPolicy | None = None
    dead_letters: str | None = None

    def __post_init__(self) -> None:
        for name, kind in (("start", GroupStart), ("isolation", Isolation)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, choice_from_json(kind, value, what=name))
        if self.tags is not None:
            TagFilter.parse(text_from_json(self.tags, "tags"))
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise TypeError(f"retry is a RetryPolicy, not {self.retry!r:.100}")
        if self.dead_letters is not None:
            check_name(text_from_json(self.dead_letters, "deadLetters"), what="topic")

    def or_else(self, others: "GroupPreferences") -> "GroupPreferences":
        """These preferences, and those of `others` about which these say nothing."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(others, **{name: value for name, value in said.items() if value is not None})

    def contradicted(self, others: "GroupPreferences") -> list[str]:
        """The names of the preferences about which both say something, and not the same."""
        pairs = [
            (each.name, getattr(self, each.name), getattr(others, each.name))
            for each in fields(self)
        ]
        return [
            name
            for name, mine, theirs in pairs
            if mine is not None and theirs is not None and _plain(mine) != _plain(theirs)
        ]

    def with_changes(self, body: Mapping[str, object]) -> "GroupPreferences":
        """The preferences with the members that the form names; null unsets one.

        Raises: BadRequestError, InvalidNameError: a value is not valid, or there is no such member.
        """
        try:
            changes = {
                FIELDS[name]: _retry(value) if name == "retry" and value is not None else value
                for name, value in body.items()
            }
            return replace(self, **changes)  # type: ignore[arg-type]  # it is checked when it is made
        except TuffError:
            raise
        except KeyError as error:
            raise BadRequestError(
                f"a group has the preferences {', '.join(MEMBERS)}, and no {shown(error.args[0])}"
            ) from None
        except (TypeError, ValueError) as error:
            raise BadRequestError(str(error)) from None

    def to_form(self) -> dict[str, object]:
        """All members, as JSON values."""
        return body_of_changes({each.name: getattr(self, each.name) for each in fields(self)})

    def to_text(self) -> str:
        """The text that `from_text` reads."""
        return orjson.dumps(self.to_form()).decode()

    @classmethod
    def from_text(cls, text: str) -> "GroupPreferences":
        """Raises: ValueError: it is no text of preferences, or one of a later version."""
        try:
            body = orjson.loads(text)
            if not isinstance(body, dict):
                raise BadRequestError(f"preferences are an object, not {shown(body)}")
            return cls().with_changes(body)
        except ValueError as error:
            raise ValueError(f"no preferences have this form: {error}") from None


def body_of_changes(changes: Mapping[str, object]) -> dict[str, object]:
    """The JSON values of some members, by the names that they have in Python.

    Raises: TypeError: a retry policy has classes of errors.
    """
    names = {field_name: name for name, field_name in FIELDS.items()}
    for value in changes.values():
        if isinstance(value, RetryPolicy) and value.outage:
            raise TypeError("outage has classes of a program, so only its consumer can have it")
    return {names[name]: _plain(value) for name, value in changes.items()}


def check_outage(outage: Collection[object]) -> None:
    """Raises: TypeError: it is no tuple of classes of errors."""
    if not isinstance(outage, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in outage
    ):
        raise TypeError(f"outage is a tuple of classes of errors, not {outage!r:.100}")


def _plain(value: object) -> object:
    """The JSON value of a preference."""
    if not isinstance(value, RetryPolicy):
        return value
    delays = [seconds_of(each, what="a delay") for each in value.delays]
    return {"delays": delays, "inOrder": value.in_order}


def _retry(value: object) -> RetryPolicy:
    if not isinstance(value, dict) or value.keys() - {"delays", "inOrder"}:
        raise BadRequestError(
            f'retry is an object such as {{"delays":[10,60],"inOrder":false}}, not {shown(value)}'
        )
    in_order = flag_from_json(value.get("inOrder", False), what="inOrder")
    delays = value.get("delays")
    if not isinstance(delays, list):
        raise BadRequestError(f"delays is a list of seconds, not {shown(delays)}")
    return RetryPolicy(delays=tuple(delays), in_order=in_order)


# The field of each member in JSON.
FIELDS = {
    "start": "start",
    "isolation": "isolation",
    "tags": "tags",
    "retry": "retry",
    "deadLetters": "dead_letters",
}
MEMBERS = tuple(FIELDS)
