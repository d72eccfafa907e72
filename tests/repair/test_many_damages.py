"""Several damages at once, of every kind a disk or a person makes: none reveals anything."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from process.checks import Data
from process.salvaging import salvage
from tests.repair.files import Past, now_ms, stored_files
from tests.repair.judge import look
from tx.files import NewerFilesError

SECTOR = 512  # bytes


def spoil(path: Path, chance: random.Random) -> str:
    """Damage a file in one way; what was done."""
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
    # A damaged number of a format is that of a later program: such a file is told, and left alone.
    with suppress(NewerFilesError):
        salvage(Data.below(data, None), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)
    if not new.exists():
        return

    seen = look(new)
    assert seen.payloads.items() <= truth.payloads.items(), done
    assert seen.visible <= truth.visible, done


@pytest.mark.slow
def test_some_damages(past: Past, tmp_path: Path) -> None:
    for seed in range(10):
        assert_nothing_is_revealed(past, tmp_path, seed=seed)


@pytest.mark.slow
def test_many_damages(past: Past, tmp_path: Path) -> None:
    for seed in range(10, 400):
        assert_nothing_is_revealed(past, tmp_path, seed=seed)
