"""Checks of topics: one order for all readers, whole publishes, nothing lost, nothing late."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeGuard

from tests.faults.checker_anomalies import Anomaly, Finding, Findings, KnownBy, Writers, repeated
from tests.faults.checker_graph import Dependencies
from tests.faults.history import BEGINNING, History, Outcome, Poll, Publish, View

_PLACE = 20  # hex digits of a row's place; the others number the payloads of one reference row
_ANYWHERE = (f"{BEGINNING}-", "~")  # after the beginning, and before the end


@dataclass(slots=True)
class Topic:
    """One topic; `placed` has every (id, value) that was read, in order."""

    name: str
    publishes: list[tuple[int, Publish]] = field(default_factory=list)
    polls: list[tuple[int, Poll]] = field(default_factory=list)
    id_of: dict[str, str] = field(default_factory=dict)
    placed: list[tuple[str, str]] = field(default_factory=list)

    def within(self, poll: Poll) -> list[tuple[str, str]]:
        """Everything that any reader got in the range of this poll."""
        start = bisect_right(self.placed, (poll.after, "\uffff"))
        return self.placed[start : bisect_right(self.placed, (poll.until, "\uffff"))]

    def ids(self, publish: Publish) -> tuple[str, str] | None:
        """The first and last id of a publish, from its reply or from reads."""
        if publish.ids is not None:
            return publish.ids
        shown = [self.id_of[value] for value in publish.values if value in self.id_of]
        return (min(shown), max(shown)) if shown else None

    def must_show(self, poll: Poll, publish: Publish, value: str) -> bool:
        """Whether this value of the publish, if it exists, must lie in the range of the poll."""
        first, last = publish.ids or _ANYWHERE
        known = self.id_of.get(value)
        lowest, highest = (known, known) if known else (first, f"{last[:_PLACE]}~")
        return poll.after < lowest and (poll.at_end or highest <= poll.until)


def topics_of(history: History) -> list[Topic]:
    """All topics."""
    topics: dict[str, Topic] = {}
    for number, attempt in enumerate(history):
        for action in attempt.actions:
            if not isinstance(action, Publish | Poll):
                continue
            topic = topics.setdefault(action.topic, Topic(action.topic))
            if isinstance(action, Publish):
                topic.publishes.append((number, action))
            else:
                topic.polls.append((number, action))
                for message_id, value in action.found:
                    topic.id_of.setdefault(value, message_id)
    for topic in topics.values():
        topic.placed = sorted({found for _, poll in topic.polls for found in poll.found})
    return list(topics.values())


def check_topics(history: History, topics: list[Topic], writers: Writers) -> Findings:
    """All anomalies of single topics."""
    yield from _own_messages(history, {topic.name: topic for topic in topics}, writers)
    for topic in topics:
        yield from _ids(topic)
        yield from _reported_ids(topic)
        yield from _publish_order(topic)
        groups = {value: publish for _, publish in topic.publishes for value in publish.values}
        for number, poll in topic.polls:
            yield from _poll(topic, number, poll, groups, writers)
            yield from _whole(topic, number, poll, groups)
            yield from _missed(topic, number, poll, history, writers)
        yield from _lost(topic, history, writers)


def topic_edges(topic: Topic, history: History, writers: Writers, edges: Dependencies) -> None:
    """The dependencies that snapshot reads of this topic show, whatever the readers' outcomes."""
    starts: list[tuple[str, int]] = []
    for number, publish in topic.publishes:
        ids = topic.ids(publish)
        if ids is not None and _is_isolated(number, history, writers):
            starts.append((ids[0], number))
    starts.sort()
    tails = edges.add_tails([number for _, number in starts])
    for reader, poll in topic.polls:
        if poll.view.is_fixed:
            _poll_edges(topic, reader, poll, (history, writers), edges)
            index = bisect_left(starts, (poll.until, len(history)))
            if poll.at_end and index < len(tails):
                edges.missed_tail(reader, tails[index])


def _is_isolated(number: int | None, history: History, writers: Writers) -> TypeGuard[int]:
    return number is not None and writers.is_committed(number) and history[number].is_transaction


def _poll_edges(
    topic: Topic, reader: int, poll: Poll, known: tuple[History, Writers], edges: Dependencies
) -> None:
    _, writers = known
    for writer in {writers.of(value) for _, value in poll.found}:
        if _is_isolated(writer, *known):
            edges.was_read(writer, reader)
    shown = set(poll.found)
    missed = {writers.of(value) for id_, value in topic.within(poll) if (id_, value) not in shown}
    for writer in missed:
        if _is_isolated(writer, *known):
            edges.was_missed(reader, writer)


def _own_messages(history: History, topics: dict[str, Topic], writers: Writers) -> Findings:
    """A transaction that reads in its own snapshot sees what it published before."""
    for number, attempt in enumerate(history):
        # Without a commit, its messages may have been rolled back before it read.
        if not writers.is_committed(number):
            continue
        own: dict[str, list[Publish]] = defaultdict(list)
        for action in attempt.actions:
            if isinstance(action, Publish) and action.completed is not None:
                own[action.topic].append(action)
            elif isinstance(action, Poll) and action.view.is_fixed and own[action.topic]:
                shown = {value for _, value in action.found}
                for publish in own[action.topic]:
                    missing = [
                        value for value in publish.values
                        if value not in shown
                        and topics[action.topic].must_show(action, publish, value)
                    ]  # fmt: skip
                    if missing:
                        what = f"{number} does not see its own {missing} on {action.topic}"
                        yield Finding(Anomaly.LOST, what, (number,))


def _ids(topic: Topic) -> Findings:
    """Each id is one message, and each message has one id, for all readers."""
    for (before, one), (after, other) in zip(topic.placed, topic.placed[1:], strict=False):
        if before == after:
            what = f"{before} of {topic.name} is {one}, and for another reader {other}"
            yield Finding(Anomaly.REORDERED, what, ())
    for value in repeated([value for _, value in topic.placed]):
        ids = [message_id for message_id, found in topic.placed if found == value]
        yield Finding(Anomaly.DUPLICATED, f"{value} is on {topic.name} as {ids}", ())


def _reported_ids(topic: Topic) -> Findings:
    """A message has an id within the range of its publish's reply."""
    for number, publish in topic.publishes:
        for value in publish.values if publish.ids else ():
            shown = topic.id_of.get(value)
            first, last = publish.ids or ("", "")
            if shown and not first[:_PLACE] <= shown[:_PLACE] <= last[:_PLACE]:
                what = f"{value} is at {shown} of {topic.name}, and not in {first} … {last}"
                yield Finding(Anomaly.REORDERED, what, (number,))


def _publish_order(topic: Topic) -> Findings:
    """A publish that began after the reply to another one comes after it."""
    placed = [(number, one, ids) for number, one in topic.publishes if (ids := topic.ids(one))]
    known = KnownBy(
        (publish.completed, ids[1]) for _, publish, ids in placed if publish.completed is not None
    )
    for number, publish, ids in placed:
        highest = known.before(publish.invoked)
        if ids[0] <= highest:
            what = (
                f"{publish.values} is at {ids[0]} of {topic.name}, and {highest} was there before"
            )
            yield Finding(Anomaly.REORDERED, what, (number,))


def _poll(
    topic: Topic, number: int, poll: Poll, groups: dict[str, Publish], writers: Writers
) -> Findings:
    last = poll.after
    for message_id, value in poll.found:
        if not last < message_id <= poll.until:
            what = f"{number} got {message_id} of {topic.name} after {last}"
            yield Finding(Anomaly.REORDERED, what, (number,))
        last = message_id
        writer = writers.of(value)
        if writer is None or value not in groups:
            yield Finding(Anomaly.INVENTED, f"{number} read {value} on {topic.name}", (number,))
        elif poll.view is not View.ALL and writers.is_failed(value) and writer != number:
            what = f"{number} read {value} on {topic.name}, which {writer} never committed"
            yield Finding(Anomaly.ABORTED_READ, what, (writer, number))


def _whole(topic: Topic, number: int, poll: Poll, groups: dict[str, Publish]) -> Findings:
    """Each publish is adjacent and complete; only the ends of a poll may cut it."""
    values = [value for _, value in poll.found]
    index = 0
    while index < len(values):
        publish = groups.get(values[index])
        if publish is None:
            index += 1
            continue
        if tuple(values[index : index + len(publish.values)]) == publish.values:
            index += len(publish.values)
            continue
        run = [each for each in values[index:] if groups.get(each) is publish]
        piece = values[index : index + len(run)]
        missing = [value for value in publish.values if value not in piece]
        is_cut = any(topic.must_show(poll, publish, value) for value in missing)
        may_lack_head = index == 0 and poll.after != BEGINNING
        may_lack_tail = index + len(run) == len(values) and not poll.at_end
        if sorted(piece) == sorted(publish.values) and tuple(piece) != publish.values:
            what = f"{number} read {publish.values} as {piece} on {poll.topic}"
            yield Finding(Anomaly.REORDERED, what, (number,))
        elif is_cut or not _is_piece(piece, publish.values, head=may_lack_head, tail=may_lack_tail):
            what = f"{number} read {run} of {publish.values} on {poll.topic}"
            yield Finding(Anomaly.TORN, what, (number,))
            index += len(values)
        index += len(run)


def _is_piece(piece: list[str], whole: tuple[str, ...], *, head: bool, tail: bool) -> bool:
    if not piece or piece[0] not in whole:
        return False
    start = whole.index(piece[0])
    stop = start + len(piece)
    return (
        piece == list(whole[start:stop]) and (start == 0 or head) and (stop == len(whole) or tail)
    )


def _missed(topic: Topic, number: int, poll: Poll, history: History, writers: Writers) -> Findings:
    """Messages that other readers got in the range of this poll, and this reader did not."""
    shown = set(poll.found)
    since = history[number].invoked
    for message_id, value in topic.within(poll):
        if (message_id, value) in shown:
            continue
        writer = writers.of(value)
        committed_at = None if writer is None else writers.committed_at(writer)
        # Only a reader that skips undecided rows passes a place before its end is known.
        stops = poll.view is not View.SNAPSHOT and committed_at is not None
        if poll.view is View.ALL or stops or writers.is_decided_for_all(value):
            what = f"{value} is at {message_id} of {topic.name}, which {number} had passed"
            yield Finding(Anomaly.PREFIX_CHANGED, what, (number,))
        elif committed_at is not None and committed_at < since:
            what = f"{number} came later and did not read {value} on {topic.name}"
            yield Finding(Anomaly.LOST, what, (number,))


def _lost(topic: Topic, history: History, writers: Writers) -> Findings:
    ends = [(history[number].invoked, number, poll) for number, poll in topic.polls if poll.at_end]
    known: list[tuple[int, str]] = []
    latest = max((since for since, _, _ in ends), default=-1)
    for number, publish in topic.publishes:
        committed_at = writers.committed_at(number)
        if committed_at is None:
            continue
        known += [
            (committed_at, topic.id_of[each]) for each in publish.values if each in topic.id_of
        ]
        missing = [value for value in publish.values if value not in topic.id_of]
        if missing and committed_at < latest and _is_nowhere(topic, publish, committed_at, history):
            # An unknown commit counts as committed only if another message of it was read.
            is_part = history[number].outcome is Outcome.UNKNOWN
            what = f"no read has {missing} of {number} on {topic.name}"
            yield Finding(Anomaly.TORN if is_part else Anomaly.LOST, what, (number,))
    required = KnownBy(known)
    for since, number, poll in ends:
        highest = required.before(since)
        if highest > poll.until:
            what = f"{number} read {topic.name} to its end, and {highest} was there before"
            yield Finding(Anomaly.LOST, what, (number,))


def _is_nowhere(topic: Topic, publish: Publish, committed_at: int, history: History) -> bool:
    """Whether reads that could not have skipped this publish cover the whole topic, up to an end
    that is later than the commit, so that it can't be anywhere."""
    read_up_to = BEGINNING
    for number, poll in sorted(topic.polls, key=lambda each: each[1].after):
        reader = history[number]
        is_later = reader.invoked > committed_at
        # A later publish comes after this range; only a snapshot read skips undecided rows.
        is_before = reader.completed is not None and reader.completed < publish.invoked
        if poll.after > read_up_to or not (is_later or is_before or poll.view is not View.SNAPSHOT):
            continue
        if poll.at_end and is_later:
            return True
        read_up_to = max(read_up_to, poll.until)
    return False
