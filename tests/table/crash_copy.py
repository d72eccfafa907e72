"""What a crash leaves of a table's directory."""

import shutil
from pathlib import Path

ATTEMPTS_MAX = 100  # times; LevelDB tidies up for a moment after it was opened, and then is still


def copy_as_crashed(home: Path, to: Path) -> None:
    """The directory of an open table, as one moment's writes left it.

    LevelDB may be merging files meanwhile: a copy that has some from before and some from after is
    what no crash leaves, and is made again.
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
    raise AssertionError(f"{home} never stands still")


def _files(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in home.iterdir() if path.exists()}
