"""What may become of messages when a stored byte is damaged: by a salvage, and by a server's reads.

Each function answers with a sentence about what must not be, or with none.
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
    """What is kept is what was there, and readers in a snapshot are shown all of it that they were
    shown before: the transaction files are whole, so no commit is in doubt."""
    if not seen.payloads.items() <= truth.payloads.items():
        return "salvage made something up"
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
    """No more than so many messages are lost, and none but these."""
    lost = truth.payloads.keys() - seen.payloads.keys()
    if len(lost) > lost_max:
        return f"salvage lost {len(lost)} messages, and {lost_max} were in danger"
    elsewhere = sorted(lost.difference(may_lose))
    return f"salvage lost {elsewhere[:3]}, which stood elsewhere" if elsewhere else None


@dataclass(slots=True)
class Reading:
    """What one reader of a topic was handed, from its beginning to its end: the messages, and the
    places that it was told are damaged, as (first id, last id). `is_known`: whether the topic could
    be read at all; if not, its own row was told to be damaged."""

    found: list[tuple[str, Any]] = field(default_factory=list)
    gaps: list[tuple[str, str]] = field(default_factory=list)
    is_known: bool = True


def read_past_damage(topic: Topic) -> Reading:
    """Read all of it, and go on behind each damaged record as the server says (protocol §3.4).

    Raises:
        AssertionError: a reply is neither messages nor damage with its place.
    """
    reading = Reading()
    place = BEGINNING
    while (behind := _read_once(topic, place, reading)) is not None:
        assert behind > place, f"{topic.name}: who reads from {place} is sent to {behind}"
        assert len(reading.gaps) <= GAPS_MAX, f"{topic.name}: damage without end, up to {place}"
        place = behind
    return reading


def _read_once(topic: Topic, place: str, reading: Reading) -> str | None:
    """The place to go on from, until the end."""
    reply = topic.poll({"startFrom": place, "inclusive": False})
    if reply.status == 500:
        return _note_damage(topic, reply, reading)
    reading.found += [(message["id"], message["payload"]) for message in ok(reply).json]
    return None if reply.header("Tuff-Caught-Up") == "true" else reply.header("Tuff-Next")


def _note_damage(topic: Topic, reply: Reply, reading: Reading) -> str | None:
    """The place behind it, if there is one."""
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
    """Everything is handed out as it was, less what lies where damage was told."""
    missing = [message for message in expected if message not in reading.found]
    kept = [message for message in expected if message in reading.found]
    if reading.found != kept:
        return f"holds {reading.found}, and {list(expected)} were there"
    silent = [
        message_id
        for message_id, _ in missing
        if reading.is_known and not any(first <= message_id <= last for first, last in reading.gaps)
    ]
    return f"passes over {silent} in silence" if silent else None
