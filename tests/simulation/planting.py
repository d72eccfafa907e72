"""Plants a bug into a copy of the rooms, and lets the simulation of that copy say what it finds."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.simulation.planted import PlantedBug

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("tuff", "tx", "messaging", "process")


def has_its_place(bug: PlantedBug) -> bool:
    """Whether what it replaces is still there, in one place only."""
    sources = [(ROOT / change.file).read_text("utf-8") for change in bug.changes]
    return all(
        source.count(change.before) == 1
        for source, change in zip(sources, bug.changes, strict=True)
    )


def plant(bug: PlantedBug, directory: Path) -> None:
    """Make a copy of the rooms with this bug."""
    assert has_its_place(bug), bug.name
    for name in COPIED:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "tests/simulation",
        directory / "tests/simulation",
        ignore=shutil.ignore_patterns("__pycache__", "test_*", "histories"),
    )
    for change in bug.changes:
        source = (ROOT / change.file).read_text("utf-8")
        (directory / change.file).write_text(source.replace(change.before, change.after), "utf-8")


def found_by(directory: Path, *, seed_count: int) -> str:
    """What the simulation in this copy says, seed by seed until the first that fails."""
    return _said(directory, "--until-one-fails", "--seeds", str(seed_count))


def said_of(history: Path, directory: Path) -> str:
    """What the simulation in this copy says of a history."""
    return _said(directory, "--replay", str(history))


def _said(directory: Path, *arguments: str) -> str:
    program = [sys.executable, "-P", "-c", _START, *arguments]
    told = subprocess.run(program, cwd=directory, capture_output=True, check=False)
    assert not told.stderr, told.stderr.decode()
    return told.stdout.decode()


# The copy alone is on the path, however the project itself was installed.
_START = (
    "import sys; sys.path.insert(0, '.'); "
    "from tests.simulation.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
