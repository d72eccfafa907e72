"""What surely lives, and what is surely gone, by all that was asked and told: times to live,
retention holds, deletions and truncations (protocol §2, §3.4, §3.8).

Between the two lies what nobody can tell: a change that was cut off, a clock that went to and fro.
"""

from collections.abc import Iterator, Mapping

from messaging.storage.rows import Hold
from tests.simulation.observations import (
    Asked,
    Deletion,
    Facts,
    Fate,
    Held,
    Publish,
    Read,
    TopicFacts,
    Truncation,
)
from tuff.protocol.ids import MessageId, Offset


def is_surely_live(facts: Facts, publish: Publish, topic: TopicFacts) -> bool:
    """Whether no clock that the server ever had calls it expired."""
    shortest_s = min([each.ttl_s for each in topic.lifetimes if each.fate is not Fate.NOT_DONE])
    return _outlives(facts, publish, min(shortest_s, publish.ttl_s or shortest_s))


def is_surely_held(facts: Facts, publish: Publish, read: Read) -> bool:
    """Whether a hold kept it from the topic's time to live, from before a read was asked for until
    after it was answered; and its own time to live is not over."""
    topic = facts.topics[publish.topic]
    if publish.ttl_s is not None and not _outlives(facts, publish, publish.ttl_s):
        return False
    return any(
        publish.first is not None and hold.first is not None and hold.first.offset <= publish.first
        for hold in _sure_holds(facts, topic, asked=read.asked, told=read.told)
    )


def is_surely_gone(facts: Facts, publish: Publish, read: Read, at: MessageId) -> bool:
    """Whether it was taken away before the read, or was expired by then, and nothing held it."""
    topic = facts.topics[read.topic]
    for change in topic.removals():
        is_done = change.fate is Fate.DONE and change.settled <= read.asked
        place = getattr(change, "place", None)
        if is_done and change.asked > publish.told and (place is None or at < place):
            return True
    if publish.ttl_s is not None and _is_over(at, publish.ttl_s, now_ms=read.now_ms):
        return True
    return _is_over(at, _longest_s(topic, read), now_ms=read.now_ms) and not _may_be_held(
        facts, topic, at.offset, asked=read.asked, told=read.told, now_ms=read.now_ms
    )


def may_have_hit(change: Deletion | Truncation, publish: Publish, read: Read) -> bool:
    """Whether a deletion or a truncation may have taken it before the read was answered."""
    if change.fate is Fate.NOT_DONE or change.asked >= read.told or change.told <= publish.asked:
        return False
    place = getattr(change, "place", None)
    return place is None or publish.first is None or MessageId(*publish.first) < place


def holds_bring_nothing_back(
    facts: Facts, topic: TopicFacts, hold: Held, now_ms: int
) -> Iterator[str]:
    """What had expired at `now_ms`, when the hold was asked for, stays so."""
    assert hold.first is not None
    assert hold.expires_at_ms is not None
    longest_s = max(each.ttl_s for each in topic.lifetimes if each.fate is not Fate.NOT_DONE)
    is_over = _is_over(hold.first, longest_s, now_ms=now_ms)
    others = [each for each in topic.holds if each is not hold]
    if is_over and not _may_be_held(
        facts, topic, hold.first.offset, asked=hold.asked, told=hold.told, now_ms=now_ms, of=others
    ):
        yield f"the hold {hold.name} of {topic.id.name} begins with what had expired"
    if hold.first < hold.wanted:
        yield f"the hold {hold.name} of {topic.id.name} begins before what it was asked for"
    if not now_ms <= hold.expires_at_ms - hold.max_age_ms <= facts.now_ms_max:
        yield f"the hold {hold.name} of {topic.id.name} ends at {hold.expires_at_ms}"


def truncations_stop_at_holds(facts: Facts, topic: TopicFacts, done: Truncation) -> Iterator[str]:
    """Nobody takes away what somebody holds."""
    for hold in _sure_holds(facts, topic, asked=done.asked, told=done.settled):
        if hold.first is not None and hold.first < done.place:
            yield f"a truncation of {topic.id.name} went past the hold {hold.name}"


def holds_are_told(
    facts: Facts, topic: TopicFacts, told: Mapping[str, Hold], *, asked: int
) -> Iterator[str]:
    """Whatever was acknowledged of holds is answered to who asks for them, crash or not."""
    for hold in _sure_holds(facts, topic, asked=asked, told=asked):
        found = told.get(hold.name)
        if found is None or (found.first, found.expires_at_ms) != (hold.first, hold.expires_at_ms):
            yield f"the hold {hold.name} of {topic.id.name} was acknowledged, and is {found}"
    for name, each in told.items():
        if each.expires_at_ms - each.set_at_ms > _longest_age_ms(topic, name):
            yield f"the hold {name} of {topic.id.name} lives longer than anybody asked for"


def _longest_age_ms(topic: TopicFacts, name: str) -> int:
    return max((each.max_age_ms for each in topic.holds if each.name == name), default=0)


def _sure_holds(facts: Facts, topic: TopicFacts, *, asked: int, told: int) -> Iterator[Held]:
    """Those that were there all the time between two moments."""
    for hold in topic.holds:
        if hold.fate is not Fate.DONE or hold.settled > asked or hold.expires_at_ms is None:
            continue
        ends = [each for each in _endings(topic, hold) if each.fate is not Fate.NOT_DONE]
        if any(each.asked < told and each.told > hold.asked for each in ends):
            continue
        if hold.expires_at_ms > facts.latest_since(hold.asked):
            yield hold


def _may_be_held(
    facts: Facts, topic: TopicFacts, place: Offset, *, asked: int, told: int, now_ms: int,
    of: list[Held] | None = None,
) -> bool:  # fmt: skip
    """Whether a hold may have kept what stands there at some time between two moments."""
    for hold in topic.holds if of is None else of:
        if hold.fate is Fate.NOT_DONE or hold.asked > told:
            continue
        ends = [each for each in _endings(topic, hold) if each.fate is Fate.DONE]
        if any(hold.told < each.asked and each.settled < asked for each in ends):
            continue
        expires_at_ms = hold.expires_at_ms or facts.now_ms_max + hold.max_age_ms
        if (hold.first or hold.wanted).offset <= place and now_ms < expires_at_ms:
            return True
    return False


def _endings(topic: TopicFacts, hold: Held) -> Iterator[Asked]:
    """What may have ended it, or set it anew."""
    yield from topic.deletions
    for each in (*topic.releases, *topic.holds):
        if each is not hold and each.name == hold.name:
            yield each


def _outlives(facts: Facts, publish: Publish, ttl_s: int) -> bool:
    if publish.first is None:
        return False
    expires_ms = publish.first.timestamp_ms + ttl_s * 1000
    return expires_ms > facts.now_ms_max or expires_ms > facts.latest_since(publish.asked)


def _is_over(at: MessageId, ttl_s: int, *, now_ms: int) -> bool:
    return at.publish_timestamp_ms + ttl_s * 1000 <= now_ms


def _longest_s(topic: TopicFacts, read: Read) -> int:
    """The longest time to live that the topic may have had when it was read."""
    asked = [each for each in topic.lifetimes if each.fate is not Fate.NOT_DONE]
    done = [each for each in asked if each.fate is Fate.DONE and each.settled < read.asked]
    return max(
        each.ttl_s for each in asked
        if each.asked < read.told and not any(later.asked > each.told for later in done)
    )  # fmt: skip
