"""Damaged bytes are reported, never returned or skipped, and the rest is salvaged (promise 8)."""

from pathlib import Path

import pytest

from tests.faults.damage import run


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_bytes_of_every_file_are_flipped_and_cut(tmp_path: Path) -> None:
    findings = run(tmp_path, byte_count=1_000, engine=30, servers=6, seed=4)

    assert findings.wrong == []
    assert findings.counts["log flip told"] > 990
    assert findings.counts["snapshot flip told"] == 1_000
    assert findings.counts["engine flip found"] == 30
    assert findings.counts["engine cut salvaged"] == 8
