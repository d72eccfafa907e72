"""Copies of a table's directory as a crash leaves it."""

import shutil
from pathlib import Path

ATTEMPTS_MAX = 100  # LevelDB changes files for a moment after it was opened


def copy_as_crashed(home: Path, to: Path) -> None:
    """Copy the directory of an open table as it was at one moment.

    LevelDB may compact files meanwhile. A copy with files from before and after is made again,
    since no crash leaves such files.
    """
    for _ in range(ATTEMPTS_MAX):
        before = _files(home)
        try:
            shutil.copytree(home, to)
        except shutil.Error:
            before = {}
        if before and before == _files(home):
            return
        shutil.rmtree(to)
    raise AssertionError(f"{home} changes all the time")


def _files(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in home.iterdir() if path.exists()}
