"""Decisions of a share group (protocol §3.12), against a model that forgets nothing."""

import pickle
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from messaging.groups import share_decisions as share_state
from messaging.groups.group_log_records import (
    SHARE_RECORDS,
    AcceptedRecord,
    DamagedRecordOfGroupError,
    ReadRecord,
    RejectedRecord,
    ShareRecord,
    TriedRecord,
    Tries,
    WindowRecord,
)
from messaging.groups.share_decisions import (
    KEY_COUNT_MAX,
    Acknowledgement,
    Lease,
    ProcessingOrder,
    ShareProperties,
    ShareState,
    Token,
)
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId
from tuff.protocol.leases import AttemptReport, LeaseAction, LeaseOutcome

START = MessageId(0, 0).to_bytes()
LEASE_MS = 100


def id_of(number: int) -> bytes:
    return MessageId(number, 0).to_bytes()


def group(*keys: str | None, order: ProcessingOrder = ProcessingOrder.NONE) -> ShareState:
    """A group whose window has one message of each key, from number 1 on."""
    state = ShareState(START, order=order, epoch=1)
    add(state, *keys)
    return state


def add(state: ShareState, *keys: str | None, first: int = 1) -> None:
    messages = [
        (id_of(number), None if key is None else key.encode())
        for number, key in enumerate(keys, first)
    ]
    state.add(messages, read_to=messages[-1][0])


def read_further(state: ShareState, keys: dict[int, str | None], *, size: int) -> None:
    """As the reader does: so many messages at once."""
    while (behind := state.further_from) is not None:
        found = [
            (id_of(number), None if key is None else key.encode())
            for number, key in keys.items()
            if behind < id_of(number) <= state.read_to
        ]
        part = found[:size]
        state.add_further(part, read_to=part[-1][0] if len(part) < len(found) else None)


def give(state: ShareState, count: int, *, now_ms: int = 0) -> list[Lease]:
    state.end_leases(now_ms=now_ms)
    found = state.candidates(count)
    until_ms = now_ms + LEASE_MS
    return [state.lease(each, until_ms=until_ms, is_begun=each == found[0]) for each in found]


def do(
    state: ShareState,
    lease: Lease,
    action: LeaseAction = LeaseAction.ACCEPT,
    *,
    now_ms: int = 0,
    ms: int | None = None,
    pointer: int | None = None,
    attempt: AttemptReport | None = None,
    log: list[ShareRecord] | None = None,
) -> LeaseOutcome:
    """Acknowledge a message; `log` gets what is written."""
    one = Acknowledgement(id=lease.id, token=lease.token, action=action, ms=ms, attempt=attempt)
    request = [one]
    outcomes, records = state.acknowledge(
        request, now_ms=now_ms, lease_ms=LEASE_MS, pointer=pointer
    )
    if log is not None:
        log += [*state.take_unwritten(), *records]
    for each in records:
        state.apply(each)
    state.remember(request, outcomes)
    return outcomes[0]


def numbers(leases: list[Lease]) -> list[int]:
    return [MessageId.from_bytes(each.id).publish_timestamp_ms for each in leases]


def low(state: ShareState) -> int:
    return MessageId.from_bytes(state.low).publish_timestamp_ms


def test_the_low_mark_stays_before_the_oldest_message_that_is_not_done() -> None:
    state = group(None, None, None)
    first, second, third = give(state, 3)

    do(state, second)
    do(state, third)
    assert state.low < first.id
    assert state.counts()["done"] == 2

    do(state, first)
    assert (low(state), state.window_count) == (3, 0)


def test_done_messages_behind_one_that_waits_take_no_memory() -> None:
    state = group(None)
    (waiting,) = give(state, 1)
    do(state, waiting, LeaseAction.RELEASE, ms=600_000)
    for number in range(2, 20_000):
        add(state, None, first=number)
        do(state, give(state, 1)[0])

    assert (state.window_count, state.counts()["done"]) == (1, 19_998)
    assert len(pickle.dumps(state)) < 1_000_000  # bytes; most is for repeated acknowledgements
    assert len(pickle.dumps(state.summary())) < 1_000
    assert state.low < waiting.id


def test_a_key_that_waits_leaves_the_window_to_the_others() -> None:
    state = group(*["a"] * 1_000, "b", order=ProcessingOrder.KEY)
    hot, other = give(state, 9)
    do(state, hot, LeaseAction.RELEASE, ms=600_000)

    assert numbers([other]) == [1_001]
    assert state.window_count == KEY_COUNT_MAX + 1
    assert state.counts()["blocked"] == 999


def test_further_messages_of_a_key_are_read_again_in_their_order() -> None:
    state = group(*"abab" * 200, order=ProcessingOrder.KEY)
    keys = dict(enumerate("abab" * 200, 1))
    given = list[int]()
    while True:
        read_further(state, keys, size=70)
        leases = give(state, 9)
        if not leases:
            break
        given += numbers(leases)
        for each in leases:
            do(state, each)

    assert sorted(given) == list(range(1, 801))
    assert [each for each in given if each % 2] == list(range(1, 801, 2))
    assert (state.low, state.window_count) == (id_of(800), 0)


def test_a_summary_makes_the_same_state_again() -> None:
    state = group(*[None] * 5)
    leases = give(state, 5)
    for each in (leases[0], leases[2], leases[4]):
        do(state, each)

    again = ShareState(START, order=ProcessingOrder.NONE, epoch=2)
    for record in state.summary():
        again.apply(SHARE_RECORDS.from_bytes(SHARE_RECORDS.to_bytes(record)))

    assert numbers(give(again, 9)) == [2, 4]
    assert again.low == state.low


def test_a_message_of_a_key_waits_for_the_retry_of_the_one_before() -> None:
    state = group("a", "a", "b", order=ProcessingOrder.KEY)
    first, other = give(state, 9)
    assert numbers([first, other]) == [1, 3]

    do(state, first, LeaseAction.RELEASE, ms=50)
    assert give(state, 9, now_ms=49) == []

    (again,) = give(state, 9, now_ms=50)
    assert (numbers([again]), again.attempts) == ([1], 2)
    do(state, again, LeaseAction.REJECT)
    assert numbers(give(state, 9, now_ms=51)) == [2]


def test_a_key_goes_on_when_its_oldest_message_expires() -> None:
    state = group("a", "a", order=ProcessingOrder.KEY)
    give(state, 1)

    state.forget_before(id_of(2))

    assert numbers(give(state, 9)) == [2]


def test_an_aborted_acceptance_leaves_the_lease_as_it_was() -> None:
    state = group(None)
    (held,) = give(state, 1)
    assert do(state, held, pointer=7) is LeaseOutcome.ACCEPTED
    assert do(state, held, pointer=8) is LeaseOutcome.LEASE_LOST
    assert do(state, held, LeaseAction.RENEW, pointer=None) is LeaseOutcome.RENEWED
    assert give(state, 1, now_ms=LEASE_MS) == []

    state.end_transaction(7, is_committed=False)

    (again,) = give(state, 1, now_ms=LEASE_MS)
    assert do(state, held) is LeaseOutcome.LEASE_LOST
    assert do(state, again) is LeaseOutcome.ACCEPTED


def test_a_second_transaction_does_not_accept_what_the_first_one_has() -> None:
    """The worker may not know that its first transaction committed."""
    state = group(None)
    (held,) = give(state, 1)
    do(state, held, pointer=7)
    state.end_transaction(7, is_committed=True)

    assert do(state, held, pointer=8) is LeaseOutcome.LEASE_LOST
    assert do(state, held) is LeaseOutcome.ACCEPTED


def test_after_a_load_an_earlier_delivery_counts_until_the_message_is_given_out() -> None:
    before = group(None, None)
    first, second = give(before, 2)
    state = ShareState(START, order=ProcessingOrder.NONE, epoch=2)
    add(state, None, None)

    assert do(state, first, LeaseAction.RENEW) is LeaseOutcome.RENEWED
    assert numbers(give(state, 9)) == [2]
    assert do(state, first) is LeaseOutcome.ACCEPTED
    assert do(state, second) is LeaseOutcome.LEASE_LOST


def test_a_token_of_a_later_epoch_does_not_count() -> None:
    state = group(None)
    (held,) = give(state, 1)
    later = Lease(id=held.id, token=Token(2, 1), attempts=1, until_ms=0)

    assert do(state, later) is LeaseOutcome.LEASE_LOST


def test_done_messages_of_a_log_are_not_given_out_when_they_are_read() -> None:
    state = ShareState(START, order=ProcessingOrder.NONE, epoch=1)
    state.apply(AcceptedRecord(ids=(id_of(2),)))
    state.apply(AcceptedRecord(ids=(id_of(3),), pointer=7))
    add(state, None, None, None, None)

    assert numbers(give(state, 9)) == [1, 4]
    state.end_transaction(7, is_committed=False)
    assert numbers(give(state, 9)) == [3]


def test_properties_are_those_of_the_row() -> None:
    made = ShareProperties(
        start="latest", after=MessageId(5, 1), order=ProcessingOrder.KEY, lease_ms=100
    )
    assert ShareProperties.from_texts({"ttl": "1", **made.to_texts()}) == made
    with pytest.raises(DamagedRecordOfGroupError):
        ShareProperties.from_texts({"ttl": "1"})


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b'{"type":"eaten","ids":[]}',
        b'{"type":"accepted","ids":["00"]}',
        b'{"type":"accepted","ids":[1]}',
        b'{"type":"summary"}',
        b'{"type":"tried","messages":[{"attempts":1}]}',
        b'{"type":"tried","messages":[{"id":"0000015896dfd00000050000000000000000ffff","attempts":-1}]}',
    ],
)
def test_a_damaged_record_is_refused(payload: bytes) -> None:
    with pytest.raises(DamagedRecordOfGroupError):
        SHARE_RECORDS.from_bytes(payload)


@pytest.mark.parametrize(
    "record",
    [
        RejectedRecord(ids=(START,)),
        AcceptedRecord(ids=(START,), pointer=7),
        ReadRecord(read_to=START),
        WindowRecord(ids=(START,)),
        WindowRecord(ids=(), key=b"a", behind=START, further=2),
        TriedRecord((Tries(id=START, attempts=1),)),
        TriedRecord((Tries(id=START, attempts=2, lost=1, is_begun=True, due_ms=7),)),
    ],
)
def test_a_record_has_one_form(record: ShareRecord) -> None:
    assert SHARE_RECORDS.from_bytes(SHARE_RECORDS.to_bytes(record)) == record


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "x-1", "1-1-1", "+1-1", "1-" + "1" * 17])
def test_a_wrong_token_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        Token.parse(text)


def test_renewals_of_long_leases_take_no_memory() -> None:
    state = group(None)
    (lease,) = give(state, 1)
    for number in range(20_000):
        do(state, lease, LeaseAction.RENEW, ms=10_000_000 + number)

    assert len(pickle.dumps(state)) < 50_000  # bytes
    state.end_leases(now_ms=10_019_998)
    assert state.counts()["leased"] == 1
    state.end_leases(now_ms=10_019_999)
    assert state.counts()["available"] == 1


def test_a_consumer_that_renews_late_has_not_died_of_its_message() -> None:
    """The end of its lease and the beginning that it reported were two attempts."""
    state = group(None, None)
    _, second = give(state, 2)
    state.end_leases(now_ms=LEASE_MS)

    do(state, second, LeaseAction.RENEW, attempt=AttemptReport.BEGUN, now_ms=LEASE_MS)

    given = [each for _ in range(2) for each in give(state, 1, now_ms=2 * LEASE_MS)]
    assert [(each.attempts, each.lost) for each in given] == [(2, 1), (2, 1)]


def test_a_consumer_that_releases_late_has_not_died_of_its_message() -> None:
    state = group(None, None)
    _, second = give(state, 2)
    state.end_leases(now_ms=LEASE_MS)

    do(state, second, LeaseAction.RELEASE, attempt=AttemptReport.NONE, now_ms=LEASE_MS)

    for now_ms in (2 * LEASE_MS, 3 * LEASE_MS):
        given = [each for _ in range(2) for each in give(state, 1, now_ms=now_ms)]
    assert [(each.attempts, each.lost) for each in given] == [(3, 2), (2, 1)]


def test_messages_that_expire_before_they_are_given_out_take_no_memory() -> None:
    state = group(None)
    for number in range(2, 20_000):
        add(state, None, first=number)
        state.forget_before(id_of(number))

    assert len(pickle.dumps(state)) < 100_000  # bytes
    assert numbers(give(state, 10)) == [19_999]


@dataclass
class Known:
    """What the model knows of a message. `holder` is the last delivery; None if it was released,
    or not given out since the load."""

    key: str | None
    holder: Lease | None = None
    free_ms: int = 0  # when a lease or delay ends
    pointer: int | None = None
    is_done: bool = False
    is_fresh: bool = True  # neither given out nor released since the load
    is_leased: bool = False  # and the end of the lease was not noticed
    waits: bool = False
    attempts: int = 0
    lost: int = 0
    is_begun: bool = False
    is_alone: bool = False
    is_suspect: bool = False
    acknowledged: set[Token] = field(default_factory=set)


class GroupMachine(RuleBasedStateMachine):
    """Random histories of a group with order by key. The log is a list of records."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ShareState(START, order=ProcessingOrder.KEY, epoch=1)
        self.epoch, self.now_ms, self.next_pointer = 1, 0, 1
        self.log: list[ShareRecord] = []
        self.known: dict[bytes, Known] = {}
        self.leases: list[Lease] = []
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(share_state, "KEY_COUNT_MAX", 2)

    def teardown(self) -> None:
        self.patched.undo()

    def read_further(self, size: int) -> None:
        keys = {number: each.key for number, each in enumerate(self.known.values(), 1)}
        read_further(self.state, keys, size=size)

    @rule(keys=st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=4))
    def publish(self, keys: list[str | None]) -> None:
        first = len(self.known) + 1
        add(self.state, *keys, first=first)
        for number, key in enumerate(keys, first):
            self.known[id_of(number)] = Known(key)

    @rule(ms=st.integers(1, 150))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count=st.integers(1, 4), size=st.integers(1, 5))
    def lease(self, count: int, size: int) -> None:
        self.read_further(size)
        for known in self.known.values():
            if known.is_leased and known.free_ms <= self.now_ms:
                known.is_leased, known.is_alone = False, True
                known.is_suspect |= not known.is_begun
            if known.free_ms <= self.now_ms:
                known.waits = False
        expected = self._given_together(self._free()[:count])
        given = give(self.state, count, now_ms=self.now_ms)
        self.log += self.state.take_unwritten()

        assert [each.id for each in given] == expected
        for each in given:
            known = self.known[each.id]
            if known.is_begun:
                known.attempts += 1 + known.is_suspect
                known.lost += 1 + known.is_suspect
                known.is_suspect = False
            assert (each.attempts, each.lost) == (known.attempts + 1, known.lost)
            known.is_begun = each is given[0]
            known.holder, known.is_fresh, known.is_leased = each, False, True
            known.free_ms = self.now_ms + LEASE_MS
            self.leases.append(each)

    def _given_together(self, ids: list[bytes]) -> list[bytes]:
        alone = [each for each in ids if self.known[each].is_alone]
        return ids[:1] if alone[:1] == ids[:1] else ids[: ids.index(alone[0]) if alone else None]

    @rule(
        data=st.data(),
        action=st.sampled_from(list(LeaseAction)),
        ms=st.integers(0, 120),
        attempt=st.sampled_from([None, *AttemptReport]),
    )
    def acknowledge(
        self, data: st.DataObject, action: LeaseAction, ms: int, attempt: AttemptReport | None
    ) -> None:
        if self.leases:
            lease = data.draw(st.sampled_from(self.leases))
            self._acknowledge(lease, action, ms, attempt, pointer=None)

    @rule(data=st.data(), action=st.sampled_from([LeaseAction.ACCEPT, LeaseAction.REJECT]))
    def acknowledge_in_a_transaction(self, data: st.DataObject, action: LeaseAction) -> None:
        if self.leases:
            lease = data.draw(st.sampled_from(self.leases))
            self._acknowledge(lease, action, 0, None, pointer=self.next_pointer)
            self.next_pointer += 1

    @rule(data=st.data(), is_committed=st.booleans())
    def end(self, data: st.DataObject, *, is_committed: bool) -> None:
        pointers = sorted(
            {each.pointer for each in self.known.values() if each.pointer is not None}
        )
        if pointers:
            pointer = data.draw(st.sampled_from(pointers))
            self.state.end_transaction(pointer, is_committed=is_committed)
            self.log = [each for each in self.log if not is_of(each, pointer)]
            for message_id, known in self.known.items():
                if known.pointer == pointer:
                    known.pointer, known.is_done = None, is_committed
                    if is_committed:
                        self.log.append(AcceptedRecord(ids=(message_id,)))

    @rule()
    def summarize(self) -> None:
        undecided = [each for each in self.log if SHARE_RECORDS.pointer_of(each)]
        self.log = [*undecided, *self.state.summary()]

    @rule(size=st.integers(1, 5))
    def load(self, size: int) -> None:
        self.epoch += 1
        self.state = ShareState(START, order=ProcessingOrder.KEY, epoch=self.epoch)
        for record in self.log:
            self.state.apply(SHARE_RECORDS.from_bytes(SHARE_RECORDS.to_bytes(record)))
        unread = [each for each in self.known if each > self.state.read_to]
        for start in range(0, len(unread), size):
            part = unread[start : start + size]
            keys = [self.known[each].key for each in part]
            first = MessageId.from_bytes(part[0]).publish_timestamp_ms
            add(self.state, *keys, first=first)
        self.read_further(size)
        for known in self.known.values():
            known.holder, known.is_fresh, known.is_leased = None, True, False
            known.free_ms = known.free_ms if known.waits else 0
            known.is_alone = known.is_begun or known.lost > 0
            known.is_suspect = False

    @invariant()
    def the_low_mark_is_right(self) -> None:
        left = [each for each, known in self.known.items() if not known.is_done]
        if left:
            assert self.state.low < left[0]
        counts = self.state.counts()
        assert sum(counts.values()) - counts["done"] >= len(left)
        assert self.state.window_count <= len(left)

    def _acknowledge(
        self,
        lease: Lease,
        action: LeaseAction,
        ms: int,
        attempt: AttemptReport | None,
        *,
        pointer: int | None,
    ) -> None:
        known = self.known[lease.id]
        outcome = do(
            self.state,
            lease,
            action,
            now_ms=self.now_ms,
            ms=ms or None,
            pointer=pointer,
            attempt=attempt,
            log=self.log,
        )
        if known.is_done:
            is_repeated = pointer is None and lease.token in known.acknowledged
            assert outcome is LeaseOutcome.LEASE_LOST or is_repeated
            return
        is_earlier = lease.token.epoch < self.epoch
        is_holder = known.is_fresh if is_earlier else known.holder == lease
        # A delay that was not forgotten by a load. A message that a transaction has acknowledged
        # may be renewed.
        if action is LeaseAction.RENEW and known.waits and known.pointer is None:
            is_holder = False
        counts = is_holder and (known.pointer is None or action is LeaseAction.RENEW)
        assert (outcome is not LeaseOutcome.LEASE_LOST) == counts
        if counts and known.pointer is None:
            self._note(lease, action, ms, attempt, pointer)

    def _note(
        self,
        lease: Lease,
        action: LeaseAction,
        ms: int,
        attempt: AttemptReport | None,
        pointer: int | None,
    ) -> None:
        known = self.known[lease.id]
        if action is LeaseAction.RENEW:
            known.is_suspect &= known.is_leased
            known.free_ms, known.is_leased = self.now_ms + (ms or LEASE_MS), True
            known.is_begun |= attempt is AttemptReport.BEGUN
        elif action is LeaseAction.RELEASE:
            known.is_suspect &= known.is_leased or attempt is not AttemptReport.NONE
            known.free_ms, known.holder, known.is_fresh = self.now_ms + ms, None, False
            known.is_leased, known.waits, known.is_begun = False, ms > 0, False
            if attempt in (None, AttemptReport.BEGUN):
                known.attempts += 1
                known.is_alone = known.is_suspect = False
            known.is_alone |= attempt is AttemptReport.UNKNOWN
        else:
            known.pointer, known.is_done = pointer, pointer is None
            known.acknowledged.add(lease.token)

    def _free(self) -> list[bytes]:
        """What can be given out, by the definition."""
        found, seen = [], set[str]()
        for message_id, known in self.known.items():
            if known.is_done or (known.key is not None and known.key in seen):
                continue
            if known.key is not None:
                seen.add(known.key)
            if known.pointer is None and known.free_ms <= self.now_ms:
                found.append(message_id)
        return found


def is_of(record: ShareRecord, pointer: int) -> bool:
    return SHARE_RECORDS.pointer_of(record) == pointer


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.slow
class TestGroupMachineForLonger(GroupMachine.TestCase):
    settings = settings(max_examples=1_000, stateful_step_count=40, deadline=None)
