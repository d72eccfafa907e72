"""Which messages certainly live and which are certainly gone, by times to live, retention holds,
deletions and truncations (protocol §2, §3.4, §3.8).

Some messages are neither: a change had no reply, or the clock was set.
"""

from collections.abc import Iterator, Mapping

from messaging.model.row_format import Hold
from tests.simulation.observations import (
    Applied,
    Deletion,
    Held,
    Observations,
    ObservedTopic,
    Publish,
    Read,
    Request,
    Truncation,
)
from tuff.protocol.ids import MessageId, Offset


def is_surely_live(observed: Observations, publish: Publish, topic: ObservedTopic) -> bool:
    """Whether it is not expired by any time that the server's clock has shown."""
    shortest_s = min([each.ttl_s for each in topic.ttl_changes if each.applied is not Applied.NO])
    return _outlives(observed, publish, min(shortest_s, publish.ttl_s or shortest_s))


def is_surely_held(observed: Observations, publish: Publish, read: Read) -> bool:
    """Whether a hold kept it during the whole read, and its own time to live was not over."""
    topic = observed.topics[publish.topic]
    if publish.ttl_s is not None and not _outlives(observed, publish, publish.ttl_s):
        return False
    return any(
        publish.first is not None and hold.first is not None and hold.first.offset <= publish.first
        for hold in _sure_holds(observed, topic, invoked=read.invoked, completed=read.completed)
    )


def is_surely_gone(observed: Observations, publish: Publish, read: Read, at: MessageId) -> bool:
    """Whether it was removed before the read, or had expired by then without a hold."""
    topic = observed.topics[read.topic]
    for change in topic.removals():
        is_done = change.applied is Applied.YES and change.known_at <= read.invoked
        place = getattr(change, "place", None)
        if is_done and change.invoked > publish.completed and (place is None or at < place):
            return True
    if publish.ttl_s is not None and _is_over(at, publish.ttl_s, now_ms=read.now_ms):
        return True
    return _is_over(at, _longest_s(topic, read), now_ms=read.now_ms) and not _may_be_held(
        observed,
        topic,
        at.offset,
        invoked=read.invoked,
        completed=read.completed,
        now_ms=read.now_ms,
    )


def may_have_hit(change: Deletion | Truncation, publish: Publish, read: Read) -> bool:
    """Whether a deletion or a truncation may have removed it before the end of the read."""
    if (
        change.applied is Applied.NO
        or change.invoked >= read.completed
        or change.completed <= publish.invoked
    ):
        return False
    place = getattr(change, "place", None)
    return place is None or publish.first is None or MessageId(*publish.first) < place


def holds_bring_nothing_back(
    observed: Observations, topic: ObservedTopic, hold: Held, now_ms: int
) -> Iterator[str]:
    """A hold that is set at `now_ms` does not bring back what had expired by then."""
    assert hold.first is not None
    assert hold.expires_at_ms is not None
    longest_s = max(each.ttl_s for each in topic.ttl_changes if each.applied is not Applied.NO)
    is_over = _is_over(hold.first, longest_s, now_ms=now_ms)
    others = [each for each in topic.holds if each is not hold]
    if is_over and not _may_be_held(
        observed,
        topic,
        hold.first.offset,
        invoked=hold.invoked,
        completed=hold.completed,
        now_ms=now_ms,
        of=others,
    ):
        yield f"the hold {hold.name} of {topic.id.name} begins with an expired message"
    if hold.first < hold.wanted:
        yield f"the hold {hold.name} of {topic.id.name} begins before the requested message"
    if not now_ms <= hold.expires_at_ms - hold.max_age_ms <= observed.now_ms_max:
        yield f"the hold {hold.name} of {topic.id.name} ends at {hold.expires_at_ms}"


def truncations_stop_at_holds(
    observed: Observations, topic: ObservedTopic, done: Truncation
) -> Iterator[str]:
    """A truncation removes nothing that is held."""
    for hold in _sure_holds(observed, topic, invoked=done.invoked, completed=done.known_at):
        if hold.first is not None and hold.first < done.place:
            yield f"a truncation of {topic.id.name} went past the hold {hold.name}"


def holds_are_reported(
    observed: Observations, topic: ObservedTopic, reported: Mapping[str, Hold], *, invoked: int
) -> Iterator[str]:
    """Acknowledged holds are reported unchanged, also after a crash."""
    for hold in _sure_holds(observed, topic, invoked=invoked, completed=invoked):
        found = reported.get(hold.name)
        if found is None or (found.first, found.expires_at_ms) != (hold.first, hold.expires_at_ms):
            yield f"the hold {hold.name} of {topic.id.name} was acknowledged, and is {found}"
    for name, each in reported.items():
        if each.expires_at_ms - each.set_at_ms > _longest_age_ms(topic, name):
            yield f"the hold {name} of {topic.id.name} lives longer than any request allowed"


def _longest_age_ms(topic: ObservedTopic, name: str) -> int:
    return max((each.max_age_ms for each in topic.holds if each.name == name), default=0)


def _sure_holds(
    observed: Observations, topic: ObservedTopic, *, invoked: int, completed: int
) -> Iterator[Held]:
    """The holds that certainly existed from one moment to the other."""
    for hold in topic.holds:
        if hold.applied is not Applied.YES or hold.known_at > invoked or hold.expires_at_ms is None:
            continue
        ends = [each for each in _endings(topic, hold) if each.applied is not Applied.NO]
        if any(each.invoked < completed and each.completed > hold.invoked for each in ends):
            continue
        if hold.expires_at_ms > observed.latest_since(hold.invoked):
            yield hold


def _may_be_held(
    observed: Observations,
    topic: ObservedTopic,
    place: Offset,
    *,
    invoked: int,
    completed: int,
    now_ms: int,
    of: list[Held] | None = None,
) -> bool:
    """Whether a hold may have kept this place at some time between two moments."""
    for hold in topic.holds if of is None else of:
        if hold.applied is Applied.NO or hold.invoked > completed:
            continue
        ends = [each for each in _endings(topic, hold) if each.applied is Applied.YES]
        if any(hold.completed < each.invoked and each.known_at < invoked for each in ends):
            continue
        expires_at_ms = hold.expires_at_ms or observed.now_ms_max + hold.max_age_ms
        if (hold.first or hold.wanted).offset <= place and now_ms < expires_at_ms:
            return True
    return False


def _endings(topic: ObservedTopic, hold: Held) -> Iterator[Request]:
    """The requests that may have ended or replaced a hold."""
    yield from topic.deletions
    for each in (*topic.releases, *topic.holds):
        if each is not hold and each.name == hold.name:
            yield each


def _outlives(observed: Observations, publish: Publish, ttl_s: int) -> bool:
    if publish.first is None:
        return False
    expires_ms = publish.first.timestamp_ms + ttl_s * 1000
    return expires_ms > observed.now_ms_max or expires_ms > observed.latest_since(publish.invoked)


def _is_over(at: MessageId, ttl_s: int, *, now_ms: int) -> bool:
    return at.publish_timestamp_ms + ttl_s * 1000 <= now_ms


def _longest_s(topic: ObservedTopic, read: Read) -> int:
    """The longest time to live that the topic may have had when it was read."""
    changes = [each for each in topic.ttl_changes if each.applied is not Applied.NO]
    done = [
        each for each in changes if each.applied is Applied.YES and each.known_at < read.invoked
    ]
    return max(
        each.ttl_s for each in changes
        if each.invoked < read.completed
        and not any(later.invoked > each.completed for later in done)
    )  # fmt: skip
