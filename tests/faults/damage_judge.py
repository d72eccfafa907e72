"""Checks what a salvage keeps, and what a server returns, when a stored byte is damaged.

Each function returns a sentence about what is wrong, or None.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.admin.judge import MessageName, Seen
from tests.faults.history import BEGINNING
from tests.http.calls import Topic
from tests.http.client import Reply, ok, problem_of

GAPS_MAX = 100  # no topic that is read here has so many messages

Messages = Sequence[tuple[str, Any]]  # message id, payload


def wrong_in_salvage(truth: Seen, seen: Seen) -> str | None:
    """A salvage invents nothing, and snapshot readers see the same messages as before, as far as it
    kept them: the transaction files are whole, so every outcome is known."""
    if not seen.payloads.items() <= truth.payloads.items():
        return "salvage invented a message"
    expected = truth.visible & seen.payloads.keys()
    if seen.visible != expected:
        return (
            f"salvage hides {len(expected - seen.visible)} messages of commits that it kept, and "
            f"shows {len(seen.visible - expected)} that were hidden"
        )
    return None


def wrong_in_loss(
    truth: Seen, seen: Seen, *, lost_max: int, may_lose: Collection[MessageName]
) -> str | None:
    """A salvage loses at most so many messages, and only some of these."""
    lost = truth.payloads.keys() - seen.payloads.keys()
    if len(lost) > lost_max:
        return f"salvage lost {len(lost)} messages, and the damage explains {lost_max}"
    elsewhere = sorted(lost.difference(may_lose))
    return f"salvage lost {elsewhere[:3]}, which were not near the damage" if elsewhere else None


@dataclass(slots=True)
class Reading:
    """The messages that one reader of a whole topic got, and the damaged ranges that were reported,
    as (first id, next id). `is_known` is False if the row of the topic itself is damaged."""

    found: list[tuple[str, Any]] = field(default_factory=list)
    gaps: list[tuple[str, str]] = field(default_factory=list)
    is_known: bool = True


def read_past_damage(topic: Topic) -> Reading:
    """Read the whole topic, and continue after each damaged range where the server says
    (protocol §3.4).

    Raises:
        AssertionError: a reply has neither messages nor a damaged range.
    """
    reading = Reading()
    place = BEGINNING
    while (behind := _read_once(topic, place, reading)) is not None:
        assert behind > place, (
            f"{topic.name}: after {place} the server says to continue at {behind}"
        )
        assert len(reading.gaps) <= GAPS_MAX, f"{topic.name}: damage without end, up to {place}"
        place = behind
    return reading


def _read_once(topic: Topic, place: str, reading: Reading) -> str | None:
    """The offset to continue from; None at the end."""
    reply = topic.poll({"startFrom": place, "inclusive": False})
    if reply.status == 500:
        return _note_damage(topic, reply, reading)
    reading.found += [(message["id"], message["payload"]) for message in ok(reply).json]
    return None if reply.header("Tuff-Caught-Up") == "true" else reply.header("Tuff-Next")


def _note_damage(topic: Topic, reply: Reply, reading: Reading) -> str | None:
    """The offset after the damaged range; None if the topic's own row is damaged."""
    problem = problem_of(reply)
    assert problem["code"] == "damaged_record", f"{topic.name}: {reply.body!r}"
    first, behind = problem["id"], problem["next"]
    if behind is None:
        named = bytes.fromhex(first).decode()
        assert named.startswith(f"{topic.namespace}:{topic.name}"), f"{named} is not {topic.name}"
        reading.is_known = False
        return None
    reading.gaps.append((first, behind))
    return str(behind)


def wrong_in_reading(expected: Messages, reading: Reading) -> str | None:
    """A reader gets all messages unchanged, except those in ranges reported as damaged."""
    missing = [message for message in expected if message not in reading.found]
    kept = [message for message in expected if message in reading.found]
    if reading.found != kept:
        return f"returned {reading.found}, and {list(expected)} were there"
    silent = [
        message_id
        for message_id, _ in missing
        if reading.is_known and not any(first <= message_id <= last for first, last in reading.gaps)
    ]
    return f"skipped {silent} silently" if silent else None
