"""The retention decision follows the golden cases, which the observers in Java follow too."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from messaging.log.topics import Topic
from messaging.model.expiry import (
    Decision,
    RetainedRow,
    RetentionState,
    Table,
    TopicRule,
    decide,
)
from messaging.model.row_format import Hold, message_key, split_topic
from messaging.retention.cleaner import _Chunk, _decide_row, _Rules
from messaging.write.write_batch import _inverted
from tuff.protocol.ids import MessageId, Offset

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "retention.json").read_text()
)


CASES = [*GOLDEN["cases"], *GOLDEN["held_cases"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_decision_follows_the_golden_cases(case: dict[str, Any]) -> None:
    topic = None
    if case.get("topic", "topic") is not None:
        rule = GOLDEN[case.get("topic", "topic")]
        floor = Offset(*case.get("floor", rule["floor"]))
        holds = tuple(
            Hold(first=MessageId(*first), set_at_ms=0, expires_at_ms=expires_at_ms)
            for first, expires_at_ms in case.get("holds", ())
        )
        topic = TopicRule(
            generation=rule["generation"], ttl_s=rule["ttl_s"], log_start=floor, holds=holds
        )
    row = RetainedRow(
        table=Table(case["table"]),
        generation=case["generation"],
        offset=Offset(*case["place"]),
        tx_pointer=case.get("tx_pointer"),
        ttl_s=case.get("ttl_s"),
    )
    state = RetentionState(
        now_ms=GOLDEN["now_ms"],
        longest_transaction_ms=GOLDEN["longest_transaction_ms"],
        in_progress=GOLDEN["in_progress"],
        invalid=GOLDEN["invalid"],
    )

    assert decide(row, topic, state) is Decision(case["fate"])


@given(
    now_ms=st.integers(0, 400_000),
    ttl_s=st.integers(1, 200),
    first_ms=st.integers(0, 500_000),
    expires_at_ms=st.integers(0, 500_000),
    place_ms=st.integers(0, 400_000),
)
@example(now_ms=400_000, ttl_s=1, first_ms=100_000, expires_at_ms=500_000, place_ms=200_000)
def test_a_rule_without_holds_keeps_what_the_holds_keep_and_little_more(
    now_ms: int, ttl_s: int, first_ms: int, expires_at_ms: int, place_ms: int
) -> None:
    hold = Hold(first=MessageId(first_ms, 3), set_at_ms=0, expires_at_ms=expires_at_ms)
    rule = TopicRule(generation=1, ttl_s=ttl_s, holds=(hold,))

    told = rule.without_holds(now_ms=now_ms)

    assert told.holds == ()
    at = Offset(place_ms, 3)
    if at >= rule.live_from(now_ms=now_ms):
        assert at >= told.live_from(now_ms=now_ms)
    if place_ms < rule.live_from(now_ms=now_ms).timestamp_ms - 1_000:
        assert at < told.live_from(now_ms=now_ms)


@given(
    ttl_s=st.integers(1, 20),
    own_ttl_s=st.none() | st.integers(1, 20),
    holds=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40_000)), max_size=3),
    pending=st.none() | st.tuples(st.integers(1, 40), st.integers(0, 9)),
    offset=st.tuples(st.integers(0, 9), st.integers(0, 2)),
)
@example(ttl_s=1, own_ttl_s=None, holds=[(5, 9_000)], pending=None, offset=(5, 3))
@example(ttl_s=1, own_ttl_s=2, holds=[(5, 9_000)], pending=None, offset=(5, 4))
@example(ttl_s=1, own_ttl_s=None, holds=[], pending=(9, 5), offset=(5, 0))
@example(ttl_s=1, own_ttl_s=None, holds=[], pending=(9, 5), offset=(4, 9))
def test_a_message_expires_at_the_time_that_the_rule_computes(
    ttl_s: int,
    own_ttl_s: int | None,
    holds: list[tuple[int, int]],
    pending: tuple[int, int] | None,
    offset: tuple[int, int],
) -> None:
    rule = TopicRule(
        generation=1,
        ttl_s=ttl_s,
        pending=pending
        and TopicRule(generation=1, ttl_s=pending[0], log_start=Offset(pending[1], 0)),
        holds=tuple(
            Hold(first=MessageId(first_ms, 3), set_at_ms=0, expires_at_ms=expires_at_ms)
            for first_ms, expires_at_ms in holds
        ),
    )
    row = RetainedRow(table=Table.MESSAGE, generation=1, offset=Offset(*offset), ttl_s=own_ttl_s)

    expires_ms = rule.expires_ms(row.offset, own_ttl_s=own_ttl_s)

    def found(now_ms: int) -> Decision:
        state = RetentionState(now_ms=now_ms, longest_transaction_ms=0, in_progress=(), invalid=())
        return decide(row, rule, state)

    assert found(expires_ms - 1) is Decision.KEEP
    assert found(expires_ms) is Decision.DROP


ROWS: dict[str, Any] = GOLDEN["rows"]


@pytest.mark.parametrize("case", ROWS["cases"], ids=lambda case: case["name"])
def test_the_retention_pass_decides_stored_rows_as_in_the_golden_cases(
    case: dict[str, Any],
) -> None:
    topics = {name.encode(): _rule(rule) for name, rule in ROWS["topics"].items()}
    key, value = bytes.fromhex(case["key"]), bytes.fromhex(case["value"])
    chunk = _Chunk()

    _decide_row(chunk, key, value, _rules(topics))

    assert list(chunk.deletes) == ([key] if case["fate"] == "drop" else [])
    assert len(chunk.inversions) == (case["fate"] == "invert")
    for pointer, prefix, place in chunk.inversions:
        assert message_key(prefix, place) == key
        inverted = _inverted(key, value, pointer)
        assert inverted is not None
        assert inverted.hex() == case["becomes"]


def _rules(topics: dict[bytes, TopicRule]) -> _Rules:
    state = RetentionState(
        now_ms=ROWS["now_ms"],
        longest_transaction_ms=ROWS["longest_transaction_ms"],
        in_progress=ROWS["in_progress"],
        invalid=ROWS["invalid"],
    )
    named = {name: (Topic(split_topic(name)), rule) for name, rule in topics.items()}
    return _Rules(named, state, may_delete=True)


def _rule(values: dict[str, Any]) -> TopicRule:
    floor = Offset(*values["floor"])
    return TopicRule(generation=values["generation"], ttl_s=values["ttl_s"], log_start=floor)
