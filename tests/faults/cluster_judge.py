"""Judges what the clients of a cluster wrote and read: the promises of one server, across owners.

Time is one monotonic clock of the machine, in seconds; ids are 40 hex digits, which sort as their
messages do.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

STALE_S_MAX = 5.0  # seconds; a replaced server answers reads within its lease (decision 0038)
SHOWN_COUNT_MAX = 20  # violations of one kind that are listed


class Did(Enum):
    """What is known about an attempt."""

    IT = "it"  # acknowledged
    NOTHING = "nothing"  # refused, and not executed
    PERHAPS = "perhaps"  # unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One attempt to publish one message. `payload` is used by no other attempt; `message_id` is
    that of the acknowledgement."""

    topic: str
    publisher: str
    payload: str
    began_s: float
    ended_s: float
    did: Did
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One poll of a consumer, which continues exclusively behind `after` (empty: from the
    beginning)."""

    topic: str
    consumer: str
    after: str
    began_s: float
    ids: tuple[str, ...]
    caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One transaction that claimed a key: when its start was acknowledged, when its commit was
    sent, and what is known about it at the end of the run."""

    pointer: int
    key: str
    started_s: float  # the reply to the start has arrived
    commit_s: float  # the commit is sent
    ended_s: float
    did: Did
    final: str  # its state at the end, asked from a server; "unknown" without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One transaction that published the same payload to two topics."""

    topics: tuple[str, str]
    payload: str
    did: Did


Final = Mapping[str, Sequence[tuple[str, str]]]  # topic: ids and payloads, in the order of a poll


def violations(
    publishes: Sequence[Publish], reads: Sequence[Read], counted: Sequence[Counted], final: Final
) -> list[str]:
    """A sentence for each broken promise."""
    by_topic: dict[str, list[Publish]] = defaultdict(list)
    reads_of: dict[str, list[Read]] = defaultdict(list)
    for publish in publishes:
        by_topic[publish.topic].append(publish)
    for read in reads:
        reads_of[read.topic].append(read)
    found: list[str] = []
    for topic in sorted({*by_topic, *reads_of, *final}):
        rows = final.get(topic, ())
        for check in (_accounted(by_topic[topic], rows), _in_real_time(by_topic[topic])):
            found += _some(f"topic {topic}: {each}" for each in check)
        found += _some(
            f"topic {topic}: {each}" for each in _as_read(reads_of[topic], by_topic[topic], rows)
        )
    return found + _some(_conflicts(counted))


def _accounted(publishes: Sequence[Publish], rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Each acknowledged message is there once, with its id; no other is there more than once."""
    for (first, _), (second, _) in pairwise(rows):
        if first >= second:
            yield f"a poll gave {second} behind {first}"
    ids: dict[str, list[str]] = defaultdict(list)
    for message_id, payload in rows:
        ids[payload].append(message_id)
    known = {each.payload for each in publishes}
    for payload in sorted(ids.keys() - known):
        yield f"it has a message that nobody published: {payload}"
    for each in publishes:
        wrong = _wrong_with(each, ids.get(each.payload, []))
        if wrong:
            yield f"{each.payload} {wrong}"


def _wrong_with(publish: Publish, ids: Sequence[str]) -> str:
    """What is wrong with a publish whose message is there with these ids; empty: nothing."""
    if len(ids) > 1:
        return f"is there {len(ids)} times"
    if publish.did is Did.NOTHING and ids:
        return "was refused as not executed, and is there"
    if publish.did is Did.IT and not ids:
        return f"was acknowledged as {publish.message_id}, and is lost"
    if publish.did is Did.IT and ids[0] != publish.message_id:
        return f"was acknowledged as {publish.message_id}, is {ids[0]}"
    return ""


def _in_real_time(publishes: Sequence[Publish]) -> Iterator[str]:
    """A publish that began after an acknowledgement has a higher id: the owners never overlap, and
    the messages of one publisher are in the order of its acknowledgements."""
    done = sorted((each for each in publishes if each.did is Did.IT), key=lambda one: one.ended_s)
    ended_s = [each.ended_s for each in done]
    highest: list[Publish] = []  # of those that ended until then
    for each in done:
        is_higher = not highest or each.message_id > highest[-1].message_id
        highest.append(each if is_higher else highest[-1])
    for each in done:
        before = bisect_right(ended_s, each.began_s)
        # An attempt that ended in the same instant as this one began came before it.
        if before and highest[before - 1].message_id >= each.message_id:
            earlier = highest[before - 1]
            yield (
                f"{each.payload} got {each.message_id}, although {earlier.payload} had been "
                f"acknowledged before as {earlier.message_id}"
            )


def _as_read(
    reads: Sequence[Read], publishes: Sequence[Publish], rows: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Each poll is a part of the final order without a gap, and is at most `STALE_S_MAX` old."""
    ids = [message_id for message_id, _ in rows]
    acknowledged = sorted((each.ended_s, each.message_id) for each in publishes if each.message_id)
    ended_s = [each for each, _ in acknowledged]
    highest: list[str] = []
    for _, message_id in acknowledged:
        highest.append(max(message_id, highest[-1]) if highest else message_id)
    for read in reads:
        begin = bisect_right(ids, read.after)
        expected = ids[begin : begin + len(read.ids)]
        if list(read.ids) != expected:
            wrong = next(
                (pair for pair in zip(read.ids, expected, strict=False) if pair[0] != pair[1]),
                (read.ids[-1], "nothing"),
            )
            behind = read.after or "nothing"
            yield f"{read.consumer} read {wrong[0]} behind {behind}, not {wrong[1]}"
            continue
        last = read.ids[-1] if read.ids else read.after
        known = bisect_right(ended_s, read.began_s - STALE_S_MAX)
        if read.caught_up and known and highest[known - 1] > last:
            yield (
                f"{read.consumer} was caught up at {last or 'nothing'}, more than "
                f"{STALE_S_MAX:g} s after {highest[known - 1]} had been acknowledged"
            )


def _conflicts(counted: Sequence[Counted]) -> Iterator[str]:
    """Outcomes stay as they were acknowledged, and of two transactions that claimed one key while
    both were open, at most one commits."""
    pointers = Counter(each.pointer for each in counted)
    for pointer, count in pointers.items():
        if count > 1:
            yield f"transactions: the pointer {pointer} was given out {count} times"
    for each in counted:
        wrong = _wrong_with_commit(each)
        if wrong:
            yield f"transactions: {wrong}"
    committed = sorted(
        (each for each in counted if each.final == "committed"), key=lambda one: one.started_s
    )
    open_of: dict[str, list[Counted]] = defaultdict(list)
    for later in committed:
        # Those of the key that had not sent their commit when this one's start was acknowledged.
        open_of[later.key] = [one for one in open_of[later.key] if later.started_s < one.commit_s]
        for earlier in open_of[later.key]:
            yield (
                f"transactions: {earlier.pointer} and {later.pointer} were open at once, and both "
                f"committed changes of {later.key}"
            )
        open_of[later.key].append(later)


def torn(pairs: Sequence[Pair], committed: Final) -> list[str]:
    """A sentence for each transaction whose messages are not in both topics, or in neither, as far
    as its commit was acknowledged or refused. `committed`: what committed reads show."""
    count = Counter((topic, payload) for topic, rows in committed.items() for _, payload in rows)
    return _some(
        f"the transaction of {each.payload} {wrong}"
        for each in pairs
        if (wrong := _torn(each, count))
    )


def _torn(pair: Pair, count: Mapping[tuple[str, str], int]) -> str:
    first, second = (count.get((topic, pair.payload), 0) for topic in pair.topics)
    if first != second or first > 1:
        return f"is torn: {first} in {pair.topics[0]} and {second} in {pair.topics[1]}"
    if pair.did is Did.IT and not first:
        return "was acknowledged as committed, and is lost"
    if pair.did is Did.NOTHING and first:
        return "did not commit, and its messages are there"
    return ""


def _wrong_with_commit(counted: Counted) -> str:
    """What is wrong with the outcome of a transaction; empty: nothing."""
    is_committed = counted.final == "committed"
    if counted.final == "unknown":
        return f"the outcome of {counted.pointer} can't be asked"
    if counted.did is Did.IT and not is_committed:
        return f"{counted.pointer} was acknowledged as committed, and is {counted.final}"
    if counted.did is Did.NOTHING and is_committed:
        return f"the commit of {counted.pointer} was refused, and it is committed"
    return ""


def _some(found: Iterable[str]) -> list[str]:
    listed = list(found)
    if len(listed) <= SHOWN_COUNT_MAX:
        return listed
    return [*listed[:SHOWN_COUNT_MAX], f"… and {len(listed) - SHOWN_COUNT_MAX} more of these"]


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a topic, or the leader of transactions, took no write: from the begin of the
    first attempt that failed, to the end of the next one that was acknowledged."""

    subject: str
    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


def outages(attempts: Iterable[tuple[str, float, float, bool]]) -> list[Outage]:
    """The outages in attempts, each with its subject, begin, end, and whether it was acknowledged;
    those of one subject in the order of their ends."""
    failing_since_s: dict[str, float] = {}
    found = []
    for subject, began_s, ended_s, is_done in attempts:
        if not is_done:
            failing_since_s[subject] = min(failing_since_s.get(subject, began_s), began_s)
        elif subject in failing_since_s:
            found.append(Outage(subject, failing_since_s.pop(subject), ended_s))
    found += [Outage(subject, at_s, float("inf")) for subject, at_s in failing_since_s.items()]
    return found
