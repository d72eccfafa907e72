"""The promises (design §2) as invariants: pure functions of all observations and a new reply.

Each yields a sentence for each violation. `READ_CHECKS` and `STATE_CHECKS` list the invariants of
reads and of transactions by promise; the others are checked where their reply comes.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.simulation.observations import (
    NEVER,
    Applied,
    Observations,
    Publish,
    Read,
    Tx,
    ids_between,
)
from tests.simulation.retention_checks import (
    is_surely_gone,
    is_surely_held,
    is_surely_live,
    may_have_hit,
)
from tuff.protocol.ids import LAST_ID, MessageId
from tuff.protocol.transaction import Transaction

Violations = Iterator[str]


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


# 1. An acknowledgement means stable storage.


def acknowledged_rows_are_there(observed: Observations, read: Read) -> Violations:
    """Every message that was acknowledged or read is in every read that may see it."""
    got = {payload for _, payload in read.items}
    for publish in observed.topics[read.topic].publishes:
        if read.kind != "all" and _may_return(publish):
            continue  # it returns soon after the reply: `prepared_messages_arrive`
        # Nearly always it is there; whether it must be there takes longer to compute.
        if not got.issuperset(publish.payloads) and _must_be_there(observed, publish, read):
            yield f"publish {_name(publish)} is missing in {_described(read)}"


def what_is_gone_stays_gone(observed: Observations, read: Read) -> Violations:
    """No read has deleted, truncated, expired or refused messages (protocol §2, §3.4)."""
    for id_bytes, payload in read.items:
        publish = observed.publish_of.get(payload)
        if publish is None or publish.topic != read.topic or publish.invoked > read.completed:
            yield f"{payload!r} was never published to {read.topic}, and is in {_described(read)}"
        elif publish.applied is Applied.NO:
            yield f"publish {_name(publish)} was refused, and is in {_described(read)}"
        elif is_surely_gone(observed, publish, read, MessageId.from_bytes(id_bytes)):
            yield f"publish {_name(publish)} is gone, and is in {_described(read)}"


# 2. The prefix never changes.


def the_prefix_never_changes(observed: Observations, read: Read) -> Violations:
    """No new message appears below an id that was read."""
    topic = observed.topics[read.topic]
    for id_bytes, payload in read.items:
        is_new = id_bytes <= topic.read_up_to and id_bytes not in topic.payload_of
        if is_new and is_surely_live(observed, observed.publish_of[payload], topic):
            yield (
                f"{payload!r} appears at {id_bytes.hex()}, after a read of everything up to "
                f"{topic.read_up_to.hex()}"
            )


def new_rows_lie_behind_old_ones(observed: Observations, publish: Publish) -> Violations:
    """A publish gets an offset above everything that was read before its request, and reads since
    its request contain it."""
    topic = observed.topics[publish.topic]
    assert publish.first is not None
    id_bytes = MessageId(*publish.first).to_bytes()
    is_new = publish.brings is None and id_bytes not in topic.payload_of
    cut = any(each.completed > publish.invoked for each in topic.removals())
    # The reply may come late, as that of a repeated commit does: rows that expired unread meanwhile
    # keep the offset that they got at first.
    was_there = is_new and not cut and is_surely_live(observed, publish, topic)
    handed = topic.read_up_to if was_there else publish.behind
    if id_bytes <= handed:
        yield f"publish {_name(publish)} got an offset below {handed.hex()}, which was read"


# 3. One order.


def everybody_reads_one_order(observed: Observations, read: Read) -> Violations:
    """Ids ascend, and an id never changes its payload."""
    topic = observed.topics[read.topic]
    ids = [id_bytes for id_bytes, _ in read.items]
    if any(first >= second for first, second in pairwise(ids)):
        yield f"ids do not ascend in {_described(read)}"
    if ids and (ids[0] <= read.start or ids[-1] > read.next_id):
        yield f"ids lie outside of the range of {_described(read)}"
    for id_bytes, payload in read.items:
        if topic.payload_of.get(id_bytes, payload) != payload:
            yield f"{id_bytes.hex()} was {topic.payload_of[id_bytes]!r}, and is {payload!r}"
        known = topic.id_of
        if _may_return(observed.publish_of[payload]):
            known = topic.committed_id_of if _reads_committed(observed, read, payload) else {}
        if known.get(payload, id_bytes) != id_bytes:
            yield f"{payload!r} stood at {known[payload].hex()}, now at {id_bytes.hex()}"


# 4. All or nothing.


def publishes_come_whole(observed: Observations, read: Read) -> Violations:
    """The messages of one publish are adjacent and in order, and all of them or none are there."""
    got = [payload for _, payload in read.items]
    at = {payload: index for index, payload in enumerate(got)}
    twice = {payload for payload in got if got.count(payload) > 1} if len(at) < len(got) else set()
    if any(
        read.kind != "all" or not _may_return(observed.publish_of[payload]) for payload in twice
    ):
        yield f"a message is there twice in {_described(read)}"
    for publish in {observed.publish_of[payload]: None for payload in got}:
        if (publish.first is None and publish.brings is not None) or _may_return(publish):
            continue
        wanted = list(publish.payloads)
        first = min(at[payload] for payload in wanted if payload in at)
        found = got[first : first + len(wanted)]
        if not _is_whole_in(observed, publish, read):
            wanted = wanted[: len(found)] if wanted[0] in at else found
        if found != wanted:
            yield f"publish {_name(publish)} is torn in {_described(read)}: {found}"


def commits_come_whole(observed: Observations, read: Read) -> Violations:
    """All messages of a commit are published."""
    topic = observed.topics[read.topic]
    if read.kind != "committed" or not read.caught_up or any(read.start):
        return
    # Without their offsets it is unknown whether single messages have expired.
    may_be_gone = any(each.ttl_s * 1000 <= observed.time_span_ms for each in topic.ttl_changes)
    if topic.deletions or topic.truncations or may_be_gone:
        return
    got = {payload for _, payload in read.items}
    for tx in observed.transactions.values():
        for publish in (tx.committed < read.invoked and tx.entries) or ():
            is_here = publish.topic == read.topic and publish.is_final and not _may_return(publish)
            if is_here and not got.issuperset(publish.payloads):
                what = f"{tx.id} committed, and its {_name(publish)}"
                yield f"{what} is missing in {_described(read)}"


def prepared_messages_arrive(observed: Observations, read: Read) -> Violations:
    """On an idle server all messages of a commit that was prepared are there."""
    topic = observed.topics[read.topic]
    may_be_gone = any(each.ttl_s * 1000 <= observed.time_span_ms for each in topic.ttl_changes)
    if topic.removals() or may_be_gone:
        return
    got = {payload for _, payload in read.items}
    for publish in topic.publishes:
        tx = publish.tx
        if tx is None or not _may_return(publish) or tx.state != "committed":
            continue
        is_kept = publish.applied is Applied.YES and publish.rollback_invoked == NEVER
        if is_kept and not publish.ttl_s and not got.issuperset(publish.payloads):
            yield f"{tx.id} committed, and its {_name(publish)} is missing in {_described(read)}"


def _may_return(publish: Publish) -> bool:
    """Whether its messages may have been set aside, and may have returned behind others."""
    tx = publish.tx
    return tx is not None and tx.prepare_invoked < NEVER


def _reads_committed(observed: Observations, read: Read, payload: bytes) -> bool:
    tx = observed.publish_of[payload].tx
    is_own = tx is not None and read.snapshot and read.snapshot.transaction_id == tx.id
    return read.kind != "all" and not is_own


# 5. Snapshot isolation.


def readers_see_what_committed(observed: Observations, read: Read) -> Violations:
    """No read in a snapshot has messages that never committed, or that its snapshot excludes."""
    if read.kind == "all":
        return
    for _, payload in read.items:
        publish = observed.publish_of[payload]
        if publish.tx is None:
            continue
        if publish.rolled_back < read.invoked:
            yield f"publish {_name(publish)} was rolled back, and is in {_described(read)}"
        is_own = read.snapshot is not None and publish.tx.id == read.snapshot.transaction_id
        if not is_own and publish.tx.is_lost:
            yield f"publish {_name(publish)} never committed, and is in {_described(read)}"
        if read.snapshot is not None and not read.snapshot.is_visible(publish.pointer or 0):
            yield f"publish {_name(publish)} is not in the snapshot of {_described(read)}"


def snapshots_hold_what_had_committed(observed: Observations, tx: Tx) -> Violations:
    """A snapshot has every transaction that was known to have committed before, and none whose
    commit had not been requested."""
    for other in observed.transactions.values():
        if other is tx:
            continue
        if other.committed < tx.invoked and not _sees(tx.snapshot, other, every=True):
            yield f"{tx.id} does not see {other.id}, which had committed before it started"
        # A transaction without rows need not be excluded from a snapshot.
        ended = min(other.commit_invoked, other.abort_invoked, other.cleared)
        may_have_ended = observed.prunes or ended < tx.completed
        if not other.is_over and not may_have_ended and _sees(tx.snapshot, other):
            yield f"{tx.id} sees {other.id}, whose commit was never requested"


def snapshots_hold_nothing_undecided(observed: Observations, tx: Tx) -> Violations:
    """A transaction that is reported as in progress or invalid was in no earlier snapshot."""
    invoked, _, state, _ = tx.seen[-1]
    if state == "committed" or tx.may_be_undone:
        return
    if tx.first_shown < (NEVER if tx.is_lost else invoked):
        yield f"rows of {tx.id} were read as committed, and it is {state} later"
    if state == "aborted":
        return
    for other in observed.transactions.values():
        if other is tx or not _sees(other.snapshot, tx):
            continue
        if state != "invalid" and other.completed < invoked:
            yield f"{other.id} saw {tx.id}, which is {state} later"
        if state == "invalid" and not observed.prunes and other.completed < tx.cleared:
            yield f"{other.id} sees {tx.id}, which is invalid"


def no_update_is_lost(observed: Observations, tx: Tx) -> Violations:
    """Of two transactions that committed the same change one sees the other; long ones excepted."""
    if tx.is_long or not tx.surely:
        return
    for other in observed.transactions.values():
        if other is tx or other.is_long or other.committed == NEVER or not other.surely:
            continue
        shared = tx.surely & other.surely
        if shared and not (_sees(tx.snapshot, other) or _sees(other.snapshot, tx)):
            yield f"{tx.id} and {other.id} committed {min(shared)!r} and neither sees the other"


def refusals_have_a_reason(
    observed: Observations, tx: Tx, key: bytes | None, other_id: int | None
) -> Violations:
    """A conflict names a change of a committed transaction that is not in the snapshot."""
    other = observed.transactions.get(other_id or 0)
    if tx.is_long:
        yield f"{tx.id} is long, and was refused for a conflict"
    elif other is None or key not in other.named or key not in tx.named:
        yield f"{tx.id} was refused for {key!r} of {other_id}, which did not change both"
    elif other.is_lost and other.prepare_invoked == NEVER:
        yield f"{tx.id} was refused for {other.id}, which is {other.state}"
    elif _sees(tx.snapshot, other, every=True):
        yield f"{tx.id} was refused for {other.id}, which it sees"


# 6. Blocking is bounded.


def blocking_is_bounded(
    observed: Observations, read: Read, *, boot_ms: int, running_since_ms: int, max_block_ms: int
) -> Violations:
    """After a tick, no reader has waited behind one transaction for longer than `max_block`."""
    tx = observed.owner(read.blocked_by or 0)
    if tx is None or tx.first_publish_boot_ms is None:
        return
    waited_ms = boot_ms - max(tx.first_publish_boot_ms, running_since_ms)
    # The server's clock may be slower than this one by a thousandth.
    if waited_ms > max_block_ms * 1.01 + 1000:
        yield f"{tx.id} has held readers of {read.topic} back for {waited_ms} ms"


def waiting_is_explained(observed: Observations, read: Read) -> Violations:
    """On an idle server an empty read that has not caught up names a blocking transaction."""
    if not read.caught_up and not read.items:
        tx = observed.owner(read.blocked_by or 0)
        if read.blocked_by is None:
            yield f"no messages, and no blocking transaction, in {_described(read)}"
        elif tx is not None and tx.is_over and tx.seen[-1][1] < read.invoked:
            yield f"{_described(read)} waits for {tx.id}, which is {tx.state}"


# 9. Ambiguity can be resolved.


def endings_stand(observed: Observations, tx: Tx) -> Violations:
    """A reported outcome never changes, except that an invalid transaction may be aborted later. A
    crash or a failed log loses no transaction that starts after it."""
    invoked, _, state, reason = tx.seen[-1]
    for _, completed, earlier, earlier_reason in tx.seen[:-1]:
        if completed > invoked or earlier in ("in_progress", "committing", "prepared"):
            continue
        if (earlier, state) == ("invalid", "aborted") and tx.abort_invoked < NEVER:
            continue
        if state != earlier or (None not in (reason, earlier_reason) and reason != earlier_reason):
            yield f"{tx.id} was {earlier} ({earlier_reason}), and is {state} ({reason})"
    if reason == "lost_in_crash" and not any(crash > tx.completed for crash in observed.crashed):
        yield f"{tx.id} was lost in a crash, and there was none since its start"


def only_a_resolve_ends_what_is_prepared(observed: Observations, tx: Tx) -> Violations:
    """A transaction that was reported as prepared ends only as a resolve said, and none is prepared
    or committed without a request."""
    invoked, _, state, reason = tx.seen[-1]
    was_prepared = any(
        earlier == "prepared" and completed <= invoked for _, completed, earlier, _ in tx.seen[:-1]
    )
    if was_prepared and state in ("in_progress", "committing"):
        yield f"{tx.id} was prepared, and is {state}"
    if was_prepared and state in ("aborted", "invalid") and "abort" not in tx.resolved:
        yield f"{tx.id} was prepared, and is {state} ({reason}) without a resolve"
    if was_prepared and state == "committed" and "commit" not in tx.resolved:
        yield f"{tx.id} was prepared, and committed without a resolve"
    if state == "prepared" and tx.prepare_invoked == NEVER:
        yield f"{tx.id} is prepared without a request"
    if state == "committed" and tx.commit_invoked == NEVER and tx.prepare_invoked < NEVER:
        yield f"{tx.id} was to be prepared, and committed by itself"


def nothing_is_forgotten(observed: Observations, tx: Tx) -> Violations:
    """The server may not know a transaction only if it ended long ago, or was invalid and removed
    from the invalid list."""
    is_off_the_list = observed.prunes or tx.cleared < NEVER
    if not observed.may_forget and not is_off_the_list:
        yield f"{tx.id} was started, and the server does not know it"


def pointers_rise(observed: Observations, pointer: int, *, highest_before: int) -> Violations:
    """Pointers only rise, also after a crash."""
    if pointer <= highest_before:
        yield f"pointer {pointer} was handed out after {highest_before}"


OfRead = Callable[[Observations, Read], Violations]
OfTx = Callable[[Observations, Tx], Violations]

READ_CHECKS: dict[int, tuple[OfRead, ...]] = {
    1: (acknowledged_rows_are_there,),
    2: (the_prefix_never_changes,),
    3: (everybody_reads_one_order, what_is_gone_stays_gone),
    4: (publishes_come_whole, commits_come_whole),
    5: (readers_see_what_committed,),
}
STATE_CHECKS: dict[int, tuple[OfTx, ...]] = {
    5: (snapshots_hold_nothing_undecided,),
    9: (endings_stand, only_a_resolve_ends_what_is_prepared),
}


def require(promise: int, faults: Violations) -> None:
    """Raises: BrokenPromiseError: with the first sentence."""
    for sentence in faults:
        raise BrokenPromiseError(f"promise {promise}: {sentence}")


def _must_be_there(observed: Observations, publish: Publish, read: Read) -> bool:
    if publish.applied is not Applied.YES or not publish.payloads:
        return False
    had_ended = _had_ended(publish, read)
    if publish.known_at > read.invoked and not had_ended:
        return False
    # Rows of an ended transaction were there before the read, so a caught-up read includes them.
    next_id = LAST_ID.to_bytes() if had_ended and read.caught_up else read.next_id
    if not _is_whole_in(observed, publish, read, next_id=next_id):
        return False
    if read.kind == "all" or publish.tx is None:
        return True
    if publish.rollback_invoked < read.completed or publish.tx.state != "committed":
        return False
    # An undecided row holds a reader, so a read that passed it has it.
    return read.snapshot is None or (
        read.snapshot.is_visible(publish.pointer or 0)
        and publish.tx.id != read.snapshot.transaction_id
    )


def _had_ended(publish: Publish, read: Read) -> bool:
    """Whether its transaction had committed before the read, or is in the snapshot of the read."""
    if publish.tx is None or publish.rollback_invoked < NEVER or read.kind == "all":
        return False
    if read.snapshot is None:
        return publish.tx.committed < read.invoked
    return publish.tx.id != read.snapshot.transaction_id and read.snapshot.is_visible(
        publish.pointer or 0
    )


def _is_whole_in(
    observed: Observations, publish: Publish, read: Read, *, next_id: bytes | None = None
) -> bool:
    """Whether all of a publish lies in the range of a read, and surely lives."""
    if publish.first is None or publish.last is None:
        return False
    first, last = ids_between(publish.first, publish.last, is_group=publish.brings is not None)
    if first <= read.start or last > (read.next_id if next_id is None else next_id):
        return False
    topic = observed.topics[publish.topic]
    if any(may_have_hit(change, publish, read) for change in topic.removals()):
        return False
    return is_surely_live(observed, publish, topic) or is_surely_held(observed, publish, read)


def _sees(snapshot: Transaction, other: Tx, *, every: bool = False) -> bool:
    visible = [snapshot.is_visible(pointer) for pointer in other.pointers]
    return all(visible) if every else any(visible)


def _name(publish: Publish) -> str:
    under = "" if publish.tx is None else f" under {publish.pointer}"
    return f"{publish.payloads} to {publish.topic}{under}"


def _described(read: Read) -> str:
    return f"the {read.kind} read of {read.topic} at moment {read.completed}"
