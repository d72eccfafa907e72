"""The catalogue example, run as a person runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_wrong_address_is_one_sentence(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "catalog.py")
    for address in ("nowhere", "http://127.0.0.1:port"):
        done = subprocess.run(
            [sys.executable, example, str(tmp_path), "--url", address],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode == 2
        assert "is no address of a server; use one like http://" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_example_shows_the_killed_writer_and_its_end(tmp_path: Path) -> None:
    files = tmp_path / "files"
    (files / "deep").mkdir(parents=True)
    for number in range(70):
        (files / "deep" / f"{number}.txt").write_text(str(number))
    (files / ".git").mkdir()
    (files / ".git" / "index").write_text("not a file of the catalogue")

    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "catalog.py"), str(files)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    output = re.sub(r"  +", "  ", done.stdout)
    for line in (
        "70 files, in 2 transactions of at most 50.",
        "rows in the catalogue  70",
        "Nothing changed, so there was nothing to announce.",
        "1 added, 1 changed, 1 removed.",
        "rows of the killed writer in SQLite  3",
        "its rows that a new transaction sees  0",
        "a committed reader receives  nothing",
        ", of client unlucky-writer",
        " is invalid (timed_out)",
        "a committed reader receives  medlar.txt",
        "Tuff-Blocked-By  none",
        " is aborted",
        "invalid transactions  0",
    ):
        assert line in output
