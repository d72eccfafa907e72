"""What the named positions of a topic may be, by all that was asked and told (protocol §3.9).

A position is a register: what it holds was the last to be set, or was under way together with what
was. An answer that was seen stays true: whatever it shows has happened.
"""

from collections.abc import Iterator, Mapping

from messaging.storage.rows import Position
from tests.simulation.facts import Asked, Fate, Move, TopicFacts
from tuff.protocol.ids import MessageId


def are_told(topic: TopicFacts, told: Mapping[str, Position]) -> Iterator[str]:
    """Each is one of those that it may be."""
    for name in sorted({each.name for each in topic.moves} | told.keys()):
        found = told.get(name)
        place = None if found is None else found.position
        if place not in _possible(topic, name):
            yield f"the position {name} of {topic.id.name} is {place}"


def learn(topic: TopicFacts, told: Mapping[str, Position], moment: int) -> None:
    """What is told has happened."""
    for each in topic.moves:
        found = told.get(each.name)
        if found is not None and each.place == found.position:
            each.end(moment, Fate.DONE)


def settle(topic: TopicFacts, told: Mapping[str, Position], moment: int) -> None:
    """Nothing is under way: what is told now counts as set now, so that nothing cut off comes."""
    for name in sorted({each.name for each in topic.moves if each.fate is Fate.OPEN}):
        found = told.get(name)
        place = None if found is None else found.position
        topic.moves.append(now := Move(asked=moment, name=name, place=place))
        now.end(moment, Fate.DONE)
        for each in topic.moves:
            if each.name == name:
                each.end(moment, Fate.NOT_DONE)


def _possible(topic: TopicFacts, name: str) -> set[MessageId | None]:
    asked: list[tuple[Asked, MessageId | None]] = [
        *((each, each.place) for each in topic.moves if each.name == name),
        *((each, None) for each in topic.deletions),
    ]
    asked = [each for each in asked if each[0].fate is not Fate.NOT_DONE]
    # What was asked for after the answer to something else has taken its place, once it is done.
    last = max((each.asked for each, _ in asked if each.fate is Fate.DONE), default=-1)
    places = {place for each, place in asked if each.told >= last}
    return places if last >= 0 else places | {None}
