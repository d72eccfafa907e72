"""The nine promises (design §2), each as a function of what is known and what was just learnt.

Every checker is pure, and yields a sentence for each way in which the promise is broken. `PROMISES`
says which promise is checked by what.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.simulation.observations import NEVER, Facts, Fate, Publish, Read, Tx, ids_between
from tests.simulation.retention_checks import (
    is_surely_gone,
    is_surely_held,
    is_surely_live,
    may_have_hit,
)
from tuff.protocol.ids import LAST_ID, MessageId
from tuff.protocol.transaction import Transaction

Faults = Iterator[str]


class BrokenPromiseError(AssertionError):
    """Something happened that must never happen."""


# 1. An acknowledgement means stable storage. 3. One order: readers of one range get the same.


def acknowledged_rows_are_there(facts: Facts, read: Read) -> Faults:
    """Whatever was acknowledged, or handed to anybody, is handed to everyone who may see it."""
    got = {payload for _, payload in read.items}
    for publish in facts.topics[read.topic].publishes:
        # Nearly always all of it is there; whether it must be takes longer to tell.
        if not got.issuperset(publish.payloads) and _must_be_there(facts, publish, read):
            yield f"publish {_name(publish)} is missing in {_told(read)}"


def what_is_gone_stays_gone(facts: Facts, read: Read) -> Faults:
    """Deleted, truncated and expired messages, and those that were refused, are handed to nobody
    (protocol §2, §3.4)."""
    for id_bytes, payload in read.items:
        publish = facts.publish_of.get(payload)
        if publish is None or publish.topic != read.topic or publish.asked > read.told:
            yield f"{payload!r} was never published to {read.topic}, and is in {_told(read)}"
        elif publish.fate is Fate.NOT_DONE:
            yield f"publish {_name(publish)} was refused, and is in {_told(read)}"
        elif is_surely_gone(facts, publish, read, MessageId.from_bytes(id_bytes)):
            yield f"publish {_name(publish)} is gone, and is in {_told(read)}"


# 2. The prefix never changes.


def the_prefix_never_changes(facts: Facts, read: Read) -> Faults:
    """Behind an id that somebody was handed, nothing new appears with a smaller one."""
    topic = facts.topics[read.topic]
    for id_bytes, payload in read.items:
        is_new = id_bytes <= topic.covered and id_bytes not in topic.payload_of
        if is_new and is_surely_live(facts, facts.publish_of[payload], topic):
            yield (
                f"{payload!r} appears at {id_bytes.hex()}, and somebody has seen everything up to "
                f"{topic.covered.hex()}"
            )


def new_rows_lie_behind_old_ones(facts: Facts, publish: Publish) -> Faults:
    """A publish gets a place behind all that was handed out before it was asked for, and it was in
    what was handed out since."""
    topic = facts.topics[publish.topic]
    assert publish.first is not None
    id_bytes = MessageId(*publish.first).to_bytes()
    is_new = publish.brings is None and id_bytes not in topic.payload_of
    cut = any(each.told > publish.asked for each in topic.removals())
    # The answer may come late, as that of a repeated commit does: rows that expired meanwhile, and
    # that nobody was handed, still have the place that they got at first.
    was_there = is_new and not cut and is_surely_live(facts, publish, topic)
    handed = topic.covered if was_there else publish.behind
    if id_bytes <= handed:
        yield f"publish {_name(publish)} got a place before {handed.hex()}, which was handed"


# 3. One order.


def everybody_reads_one_order(facts: Facts, read: Read) -> Faults:
    """Ids ascend, and an id and its payload belong together for ever."""
    topic = facts.topics[read.topic]
    ids = [id_bytes for id_bytes, _ in read.items]
    if any(first >= second for first, second in pairwise(ids)):
        yield f"ids do not ascend in {_told(read)}"
    if ids and (ids[0] <= read.start or ids[-1] > read.next_id):
        yield f"ids lie outside of the range of {_told(read)}"
    for id_bytes, payload in read.items:
        if topic.payload_of.get(id_bytes, payload) != payload:
            yield f"{id_bytes.hex()} was {topic.payload_of[id_bytes]!r}, and is {payload!r}"
        if topic.id_of.get(payload, id_bytes) != id_bytes:
            yield f"{payload!r} stood at {topic.id_of[payload].hex()}, now at {id_bytes.hex()}"


# 4. All or nothing.


def publishes_come_whole(facts: Facts, read: Read) -> Faults:
    """The messages of one publish are adjacent and in order, and all there or none."""
    got = [payload for _, payload in read.items]
    at = {payload: index for index, payload in enumerate(got)}
    if len(at) < len(got):
        yield f"something is there twice in {_told(read)}"
    for publish in {facts.publish_of[payload]: None for payload in got}:
        if publish.first is None and publish.brings is not None:
            continue
        wanted = list(publish.payloads)
        first = min(at[payload] for payload in wanted if payload in at)
        found = got[first : first + len(wanted)]
        if not _is_whole_in(facts, publish, read):
            wanted = wanted[: len(found)] if wanted[0] in at else found
        if found != wanted:
            yield f"publish {_name(publish)} is torn in {_told(read)}: {found}"


def commits_come_whole(facts: Facts, read: Read) -> Faults:
    """Who committed with messages has published every one of them."""
    topic = facts.topics[read.topic]
    if read.kind != "committed" or not read.caught_up or any(read.start):
        return
    # Without their places it can't be told of single messages whether they are still alive.
    may_be_gone = any(each.ttl_s * 1000 <= facts.time_span_ms for each in topic.lifetimes)
    if topic.deletions or topic.truncations or may_be_gone:
        return
    got = {payload for _, payload in read.items}
    for tx in facts.transactions.values():
        for publish in (tx.committed < read.asked and tx.entries) or ():
            is_here = publish.topic == read.topic and publish.is_final
            if is_here and not got.issuperset(publish.payloads):
                yield f"{tx.id} committed, and its {_name(publish)} is missing in {_told(read)}"


# 5. Snapshot isolation.


def readers_see_what_committed(facts: Facts, read: Read) -> Faults:
    """No reader in a snapshot is handed what did not commit, or what its snapshot leaves out."""
    if read.kind == "all":
        return
    for _, payload in read.items:
        publish = facts.publish_of[payload]
        if publish.tx is None:
            continue
        if publish.rolled_back < read.asked:
            yield f"publish {_name(publish)} was rolled back, and is in {_told(read)}"
        is_own = read.snapshot is not None and publish.tx.id == read.snapshot.transaction_id
        if not is_own and publish.tx.is_lost:
            yield f"publish {_name(publish)} never committed, and is in {_told(read)}"
        if read.snapshot is not None and not read.snapshot.is_visible(publish.pointer or 0):
            yield f"publish {_name(publish)} is not in the snapshot of {_told(read)}"


def snapshots_hold_what_had_committed(facts: Facts, tx: Tx) -> Faults:
    """A snapshot has every transaction that was known to have committed before, and none whose
    commit nobody had asked for yet."""
    for other in facts.transactions.values():
        if other is tx:
            continue
        if other.committed < tx.asked and not _sees(tx.snapshot, other, every=True):
            yield f"{tx.id} does not see {other.id}, which had committed before it started"
        # One that left nothing, or nothing any more, need not be left out of a snapshot.
        ended = min(other.commit_asked, other.abort_asked, other.cleared)
        may_have_ended = facts.prunes or ended < tx.told
        if not other.is_over and not may_have_ended and _sees(tx.snapshot, other):
            yield f"{tx.id} sees {other.id}, whose commit nobody has asked for"


def snapshots_hold_nothing_undecided(facts: Facts, tx: Tx) -> Faults:
    """A transaction that is told to be in progress, or invalid, was in no earlier snapshot."""
    asked, _, state, _ = tx.seen[-1]
    if state == "committed" or tx.may_be_undone:
        return
    if tx.handed_over < (NEVER if tx.is_lost else asked):
        yield f"rows of {tx.id} were handed out as committed, and it is {state} later"
    if state == "aborted":
        return
    for other in facts.transactions.values():
        if other is tx or not _sees(other.snapshot, tx):
            continue
        if state != "invalid" and other.told < asked:
            yield f"{other.id} saw {tx.id}, which is {state} later"
        if state == "invalid" and not facts.prunes and other.told < tx.cleared:
            yield f"{other.id} sees {tx.id}, which is invalid"


def no_update_is_lost(facts: Facts, tx: Tx) -> Faults:
    """Of two that committed an equal change one sees the other (long ones take no part)."""
    if tx.is_long or not tx.surely:
        return
    for other in facts.transactions.values():
        if other is tx or other.is_long or other.committed == NEVER or not other.surely:
            continue
        shared = tx.surely & other.surely
        if shared and not (_sees(tx.snapshot, other) or _sees(other.snapshot, tx)):
            yield f"{tx.id} and {other.id} both committed {min(shared)!r} and see neither the other"


def refusals_have_a_reason(facts: Facts, tx: Tx, key: bytes | None, other_id: int | None) -> Faults:
    """A conflict names a change of a transaction that committed and is not in the snapshot."""
    other = facts.transactions.get(other_id or 0)
    if tx.is_long:
        yield f"{tx.id} is long, and was refused for a conflict"
    elif other is None or key not in other.named or key not in tx.named:
        yield f"{tx.id} was refused for {key!r} of {other_id}, which did not change both"
    elif other.is_lost:
        yield f"{tx.id} was refused for {other.id}, which is {other.state}"
    elif _sees(tx.snapshot, other, every=True):
        yield f"{tx.id} was refused for {other.id}, which it sees"


# 6. Blocking is bounded.


def blocking_is_bounded(
    facts: Facts, read: Read, *, boot_ms: int, running_since_ms: int, max_block_ms: int
) -> Faults:
    """Asked after a tick: nobody waits behind one transaction for longer than `max_block`."""
    tx = facts.owner(read.blocked_by or 0)
    if tx is None or tx.first_publish_boot_ms is None:
        return
    waited_ms = boot_ms - max(tx.first_publish_boot_ms, running_since_ms)
    # The server's clock may go slower than this one, by a thousandth.
    if waited_ms > max_block_ms * 1.01 + 1000:
        yield f"{tx.id} has held readers of {read.topic} back for {waited_ms} ms"


def waiting_is_explained(facts: Facts, read: Read) -> Faults:
    """Asked when all is quiet: a fresh reader that gets nothing, and not because there is nothing,
    learns whose fault it is."""
    if not read.caught_up and not read.items:
        tx = facts.owner(read.blocked_by or 0)
        if read.blocked_by is None:
            yield f"nothing, and no reason for it, in {_told(read)}"
        elif tx is not None and tx.is_over and tx.seen[-1][1] < read.asked:
            yield f"{_told(read)} waits for {tx.id}, which is {tx.state}"


# 9. Ambiguity can be resolved.


def endings_stand(facts: Facts, tx: Tx) -> Faults:
    """What was told of an ending is told for ever; only an invalid one may be aborted later. A
    crash, or a log that failed, loses nobody who starts after it."""
    asked, _, state, reason = tx.seen[-1]
    for _, told, earlier, earlier_reason in tx.seen[:-1]:
        if told > asked or earlier in ("in_progress", "committing"):
            continue
        if (earlier, state) == ("invalid", "aborted") and tx.abort_asked < NEVER:
            continue
        if state != earlier or (None not in (reason, earlier_reason) and reason != earlier_reason):
            yield f"{tx.id} was {earlier} ({earlier_reason}), and is {state} ({reason})"
    if reason == "lost_in_crash" and not any(crash > tx.told for crash in facts.crashed):
        yield f"{tx.id} was lost in a crash that never was"


def nothing_is_forgotten(facts: Facts, tx: Tx) -> Faults:
    """Asked for a transaction that was started: nobody knows it. That is right only for one that
    ended long ago, or that was lost and then taken off the invalid list."""
    is_off_the_list = facts.prunes or tx.cleared < NEVER
    if not facts.may_forget and not is_off_the_list:
        yield f"{tx.id} was started, and nobody knows it"


def pointers_rise(facts: Facts, pointer: int, *, highest_before: int) -> Faults:
    """No pointer is handed out twice, nor one below an earlier one, whatever crashed."""
    if pointer <= highest_before:
        yield f"pointer {pointer} was handed out after {highest_before}"


OfRead = Callable[[Facts, Read], Faults]
OfTx = Callable[[Facts, Tx], Faults]

READ_CHECKS: dict[int, tuple[OfRead, ...]] = {
    1: (acknowledged_rows_are_there,),
    2: (the_prefix_never_changes,),
    3: (everybody_reads_one_order, what_is_gone_stays_gone),
    4: (publishes_come_whole, commits_come_whole),
    5: (readers_see_what_committed,),
}
STATE_CHECKS: dict[int, tuple[OfTx, ...]] = {
    5: (snapshots_hold_nothing_undecided,),
    9: (endings_stand,),
}


def require(promise: int, faults: Faults) -> None:
    """Raises: BrokenPromiseError: with the first sentence."""
    for sentence in faults:
        raise BrokenPromiseError(f"promise {promise}: {sentence}")


def _must_be_there(facts: Facts, publish: Publish, read: Read) -> bool:
    if publish.fate is not Fate.DONE or not publish.payloads:
        return False
    had_ended = _had_ended(publish, read)
    if publish.settled > read.asked and not had_ended:
        return False
    # Rows of who had ended were there already; so they lie in all that a reader caught up with.
    next_id = LAST_ID.to_bytes() if had_ended and read.caught_up else read.next_id
    if not _is_whole_in(facts, publish, read, next_id=next_id):
        return False
    if read.kind == "all" or publish.tx is None:
        return True
    if publish.rollback_asked < read.told or publish.tx.state != "committed":
        return False
    # A row that was undecided holds a reader, so whoever went past it saw it.
    return read.snapshot is None or (
        read.snapshot.is_visible(publish.pointer or 0)
        and publish.tx.id != read.snapshot.transaction_id
    )


def _had_ended(publish: Publish, read: Read) -> bool:
    """Whether its transaction had committed before the read was asked, or is in its snapshot."""
    if publish.tx is None or publish.rollback_asked < NEVER or read.kind == "all":
        return False
    if read.snapshot is None:
        return publish.tx.committed < read.asked
    return publish.tx.id != read.snapshot.transaction_id and read.snapshot.is_visible(
        publish.pointer or 0
    )


def _is_whole_in(
    facts: Facts, publish: Publish, read: Read, *, next_id: bytes | None = None
) -> bool:
    """Whether all of a publish lies in the range of a read, and surely lives."""
    if publish.first is None or publish.last is None:
        return False
    first, last = ids_between(publish.first, publish.last, is_group=publish.brings is not None)
    if first <= read.start or last > (read.next_id if next_id is None else next_id):
        return False
    topic = facts.topics[publish.topic]
    if any(may_have_hit(change, publish, read) for change in topic.removals()):
        return False
    return is_surely_live(facts, publish, topic) or is_surely_held(facts, publish, read)


def _sees(snapshot: Transaction, other: Tx, *, every: bool = False) -> bool:
    visible = [snapshot.is_visible(pointer) for pointer in other.pointers]
    return all(visible) if every else any(visible)


def _name(publish: Publish) -> str:
    under = "" if publish.tx is None else f" under {publish.pointer}"
    return f"{publish.payloads} to {publish.topic}{under}"


def _told(read: Read) -> str:
    return f"the {read.kind} read of {read.topic} at moment {read.told}"
