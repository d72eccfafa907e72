"""Several corruptions at once, of every kind that a disk or an operator makes, reveal nothing."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from admin.data_directory import DataDirectory
from admin.salvage import salvage
from tests.admin.files import Past, now_ms, stored_files
from tests.admin.judge import look
from tx.file_headers import NewerFilesError

SECTOR = 512  # bytes


def spoil(path: Path, chance: random.Random) -> str:
    """Corrupt a file in one way; returns what was done."""
    data = path.read_bytes()
    at = chance.randrange(len(data))
    how = chance.choice(("zeros", "noise", "cut", "flip", "removed"))
    spoilt = {
        "zeros": data[:at] + bytes(len(data[at : at + SECTOR])) + data[at + SECTOR :],
        "noise": data[:at] + chance.randbytes(len(data[at : at + 64])) + data[at + 64 :],
        "cut": data[:at],
        "flip": data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :],
        "removed": b"",
    }
    path.write_bytes(spoilt[how])
    if how == "removed":
        path.unlink()
    return f"{path.name} {how} {at}"


def assert_nothing_is_revealed(past: Past, scratch: Path, *, seed: int) -> None:
    truth = look(past.data)
    chance = random.Random(seed)
    data = past.copy(scratch / f"data-{seed}")
    files = stored_files(data)
    done = [spoil(path, chance) for path in chance.sample(files, chance.choice((1, 2, 3, 6)))]

    new = scratch / f"new-{seed}"
    # A damaged format number looks like one of a newer version: salvage refuses such a file.
    with suppress(NewerFilesError):
        salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)
    if not new.exists():
        return

    seen = look(new)
    assert seen.payloads.items() <= truth.payloads.items(), done
    assert seen.visible <= truth.visible, done


@pytest.mark.slow
def test_random_corruption_reveals_nothing(past: Past, tmp_path: Path) -> None:
    for seed in range(400):
        assert_nothing_is_revealed(past, tmp_path, seed=seed)
