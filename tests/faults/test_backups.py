"""Backups that are taken under load hold what was acknowledged, and nothing half (promises 1-5)."""

from pathlib import Path

import pytest

from tests.faults.backups import BackupProgram


@pytest.mark.slow
def test_backups_under_load_hold_what_was_acknowledged(tmp_path: Path) -> None:
    said = BackupProgram(tmp_path, clients=16, ballast=5).run(3)

    assert said.startswith("3 backups under 16 clients restored")
