"""Exact accounting of what clients were told: who may be seen, who must not, in which order."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.faults.checker_history import Poll

View = Mapping[str, Sequence[tuple[str, str]]]  # topic -> (message id, payload) in order
Requests = tuple[tuple[str, tuple[str, ...]], ...]  # each publish: its topic and its payloads


class Fate(Enum):
    """What a client knows of one unit of its work."""

    SEEN = "acknowledged: every committed reader finds it exactly once"
    HIDDEN = "ended without committing: no committed reader ever finds it"
    MAYBE = "a publish without a transaction whose reply was lost: whole, or not at all"
    ASK = "a transaction whose end is not known: its outcome can be asked"
    REPEAT = "a run whose reply was lost: repeated with its request id it happens once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of work of one client: `requests` has each publish, as (topic, its payloads).

    For the history: when it began and when its end was known, what its snapshot showed, and where
    its messages are, if it had to be repeated.
    """

    client: int
    number: int
    fate: Fate
    requests: Requests
    pointer: str | None = None
    body: Mapping[str, object] | None = None
    invoked: int = 0
    completed: int | None = None
    polls: tuple[Poll, ...] = ()
    ids: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.client}.{self.number}"


def payloads(client: int, number: int, request: int, count: int) -> tuple[str, ...]:
    """Payloads that say whose they are: client, number of the unit, request in it, part."""
    return tuple(f"{client}.{number}.{request}.{part}" for part in range(count))


def unsure_of(units: Iterable[Unit]) -> set[str]:
    """The names of those whose end their client was not told."""
    return {unit.name for unit in units if unit.fate not in {Fate.SEEN, Fate.HIDDEN}}


def check_committed(
    units: Sequence[Unit], view: View, *, unsure: Collection[str] = frozenset()
) -> None:
    """Everything that was acknowledged is there exactly once and adjacent, and what may be there is
    so on all of its topics or on none; nothing else is there.

    Each client's units are in the order of their numbers. Those that are named as `unsure` ended
    when their client may have gone on with others: they stand anywhere behind the earlier ones.
    """
    places = _places(view)
    expected: set[tuple[str, str]] = set()
    for unit in units:
        assert unit.fate not in {Fate.ASK, Fate.REPEAT}, f"{unit} was never resolved"
        counts = []
        for topic, sent in unit.requests:
            found = [places[topic, payload] for payload in sent if (topic, payload) in places]
            counts.append(len(found))
            if unit.fate is Fate.HIDDEN:
                assert not found, f"{unit} is visible"
                continue
            if unit.fate is Fate.SEEN:
                assert len(found) == len(sent), f"{unit} has {len(found)} of {len(sent)} messages"
            assert len(found) in {0, len(sent)}, f"{unit} is there in part"
            assert found == list(range(found[0], found[0] + len(found))) if found else True, (
                f"{unit} is not adjacent: {found}"
            )
            expected.update((topic, payload) for payload in sent if found)
        assert not any(counts) or all(counts), f"{unit} is there on some of its topics: {counts}"
    unknown = set(places) - expected
    assert not unknown, f"nobody published {sorted(unknown)[:5]} ({len(unknown)} in all)"
    for topic, messages in view.items():
        message_ids = [message_id for message_id, _ in messages]
        assert message_ids == sorted(set(message_ids)), f"ids of {topic} do not ascend"
        _check_order(topic, [payload for _, payload in messages], unsure)


def _places(view: View) -> dict[tuple[str, str], int]:
    places: dict[tuple[str, str], int] = {}
    for topic, messages in view.items():
        for index, (_, payload) in enumerate(messages):
            assert (topic, payload) not in places, f"{payload} is twice on {topic}"
            places[topic, payload] = index
    return places


def _check_order(topic: str, found: Sequence[str], unsure: Collection[str]) -> None:
    last: dict[int, tuple[int, ...]] = {}
    for payload in found:
        client, *numbers = map(int, payload.split("."))
        before, this = last.get(client, ()), tuple(numbers)
        is_unsure = f"{client}.{this[0]}" in unsure
        assert this > before or is_unsure, f"{payload} is out of order on {topic}"
        last[client] = max(before, this)


def check_prefix(before: View, after: View) -> None:
    """What one reader was handed stays the beginning of what every later reader is handed."""
    for topic, messages in before.items():
        later = after.get(topic, ())
        assert list(later[: len(messages)]) == list(messages), (
            f"the first {len(messages)} messages of {topic} changed: "
            f"{_first_difference(messages, later)}"
        )


def _first_difference(
    before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]
) -> tuple[object, object]:
    for one, other in zip(before, after, strict=False):
        if one != other:
            return one, other
    return before[len(after) : len(after) + 1], ()
