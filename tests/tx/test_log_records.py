"""The edits and outcomes that are listed by hand for speed have the bytes of their codecs."""

from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from tuff.protocol.ids import Offset
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.log_records import (
    Aborted,
    BlockKept,
    BlockReserved,
    BlockReturned,
    Checkpointed,
    Committed,
    Committing,
    Confirmed,
    Conflict,
    Edit,
    EpochBegun,
    InDoubt,
    Invalidated,
    InvalidReason,
    PointerRange,
    Prepared,
    Refused,
    Restarted,
    SinkForgotten,
    Started,
    StoreJoined,
    Truncated,
    decode_edit,
    encode_edit,
    encode_edits,
    row_of,
    to_bytes,
)
from tx.outcomes import OUTCOME, EndedState, Outcome, _row

COUNTS = st.integers(0, 1 << 40)
TIMES = st.integers(0, 1 << 41)
POINTERS = st.integers(1, (1 << 62) - 1)
TEXTS = st.text(max_size=8)
KEYS = st.frozensets(st.binary(max_size=6), max_size=4)
TOPICS = st.lists(TEXTS, max_size=3).map(tuple)
OFFSETS = st.builds(Offset, TIMES, st.integers(0, 65_535))
PUBLISHED = st.lists(st.builds(RollbackDetail, POINTERS, OFFSETS, OFFSETS), max_size=3).map(tuple)
TYPES = st.sampled_from(TransactionType)
REASONS = st.sampled_from(InvalidReason)
CONFLICTS = st.builds(Conflict, st.binary(max_size=6), POINTERS, TEXTS, COUNTS)
RANGES = st.builds(PointerRange, POINTERS, POINTERS)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


# One strategy for each kind, in the order of its fields.
EDITS: dict[type[Edit], st.SearchStrategy[Edit]] = {
    BlockReserved: st.builds(BlockReserved, TIMES, RANGES),
    BlockReturned: st.builds(BlockReturned, TIMES),
    BlockKept: st.builds(BlockKept, TIMES, RANGES),
    Started: st.builds(
        Started, TIMES, POINTERS, TYPES, COUNTS, TIMES, TEXTS, COUNTS, maybe(COUNTS), maybe(TEXTS),
        maybe(TEXTS), st.booleans(),
    ),
    EpochBegun: st.builds(
        EpochBegun, TIMES, POINTERS, COUNTS, TIMES, TEXTS, COUNTS, maybe(COUNTS), TEXTS, COUNTS,
        TEXTS, maybe(TEXTS),
    ),
    StoreJoined: st.builds(StoreJoined, TIMES, POINTERS),
    Checkpointed: st.builds(Checkpointed, TIMES, POINTERS, POINTERS),
    Committing: st.builds(Committing, TIMES, POINTERS, KEYS),
    Refused: st.builds(Refused, TIMES, POINTERS, CONFLICTS),
    Prepared: st.builds(Prepared, TIMES, POINTERS, KEYS, TEXTS, PUBLISHED),
    Committed: st.builds(
        Committed, TIMES, POINTERS, KEYS, st.booleans(), PUBLISHED, TOPICS, maybe(TEXTS)
    ),
    InDoubt: st.builds(InDoubt, TIMES, POINTERS, KEYS, PUBLISHED, TOPICS, maybe(TEXTS)),
    Confirmed: st.builds(Confirmed, TIMES, POINTERS),
    Aborted: st.builds(Aborted, TIMES, POINTERS, TOPICS),
    Invalidated: st.builds(Invalidated, TIMES, POINTERS, REASONS, TOPICS),
    Truncated: st.builds(Truncated, TIMES, st.lists(POINTERS, max_size=3).map(tuple)),
    Restarted: st.builds(Restarted, TIMES, st.booleans(), st.lists(RANGES, max_size=2).map(tuple)),
    SinkForgotten: st.builds(SinkForgotten, TIMES, TEXTS),
}  # fmt: skip
OUTCOMES = st.builds(
    Outcome,
    transaction_id=POINTERS,
    state=st.sampled_from(EndedState),
    reason=maybe(REASONS),
    type=TYPES,
    client=TEXTS,
    started_at_ms=TIMES,
    expires_at_ms=TIMES,
    ended_at_ms=TIMES,
    checkpoints=st.lists(POINTERS, max_size=3).map(tuple),
    published=PUBLISHED,
    topics=TOPICS,
    request_id=maybe(TEXTS),
    lsn=COUNTS,
)


def test_every_kind_of_edit_is_compared() -> None:
    assert set(EDITS) == set(get_args(Edit))


@settings(max_examples=50)
@given(st.lists(st.one_of(*EDITS.values()), min_size=1, max_size=8))
def test_the_edits_of_a_batch_have_the_bytes_of_their_codecs(edits: Sequence[Edit]) -> None:
    numbered = list(enumerate(edits, 7))

    bodies = encode_edits(numbered)

    assert bodies == [to_bytes(row_of(lsn, edit)) for lsn, edit in numbered]
    assert bodies == [encode_edit(lsn, edit) for lsn, edit in numbered]
    assert [decode_edit(body) for body in bodies] == numbered


@settings(max_examples=50)
@given(OUTCOMES)
def test_an_outcome_has_the_bytes_of_its_codec(outcome: Outcome) -> None:
    assert to_bytes(_row(outcome)) == to_bytes(OUTCOME.pack(outcome))
