"""The golden cases of retention, which every engine's observer runs too (design §5)."""

import json
from pathlib import Path
from typing import Any

import pytest

from messaging.retention import (
    Fate,
    RetainedRow,
    RetentionState,
    Table,
    TopicRule,
    fate,
)
from tuff.protocol.ids import Place

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "retention.json").read_text()
)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_retention_decides_as_the_golden_cases_say(case: dict[str, Any]) -> None:
    topic = None
    if case.get("topic", "topic") is not None:
        rule = GOLDEN[case.get("topic", "topic")]
        floor = Place(*case.get("floor", rule["floor"]))
        topic = TopicRule(generation=rule["generation"], ttl_s=rule["ttl_s"], floor=floor)
    row = RetainedRow(
        table=Table(case["table"]),
        generation=case["generation"],
        place=Place(*case["place"]),
        tx_pointer=case.get("tx_pointer"),
        ttl_s=case.get("ttl_s"),
    )
    state = RetentionState(
        now_ms=GOLDEN["now_ms"],
        longest_transaction_ms=GOLDEN["longest_transaction_ms"],
        in_progress=GOLDEN["in_progress"],
        invalid=GOLDEN["invalid"],
    )

    assert fate(row, topic, state) is Fate(case["fate"])
