"""Scenario scripts: the readable specification, run against the real components.

Each file in `tests/scripts/` is a story: a comment, a command, `----`, and exactly what it prints.
After a change that is meant to change what a script prints, let `pytest tests/test_scripts.py
--rewrite` write the new output, then read the diff. Commit only what you understand and want: a
script that was rewritten unread says what the code does, and no longer what it should do.
"""

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.scripts.script import Script
from tests.scripts.transcript import Remark, ScriptError, Step, parse, render

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.fixture(autouse=True)
def nothing_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is in the log when its command is through, and not some real milliseconds later:
    whether a crash lost it was left to chance, and a script tells one story."""
    monkeypatch.setattr("tx.wal.UNWANTED_S_MAX", 0)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SCRIPTS])
async def test_a_script_prints_what_it_says(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = path.read_text("utf-8")
    played = render(await play(list(parse(text)), tmp_path))

    if request.config.getoption("--rewrite"):
        path.write_text(played, "utf-8")
        return
    if played != text:
        says, prints = text.splitlines(), played.splitlines()
        diff = unified_diff(says, prints, "the script says", "it prints", n=5, lineterm="")
        pytest.fail("\n".join(diff), pytrace=False)


async def play(entries: list[Step | Remark], directory: Path) -> list[Step | Remark]:
    """The script, with what its commands print now."""
    script = Script(directory)
    await script.open()
    try:
        return [
            Step(entry.line, entry.command, tuple(await script.run(entry.command)))
            if isinstance(entry, Step)
            else entry
            for entry in entries
        ]
    finally:
        await script.close()


def test_a_script_is_parsed_into_commands_and_their_output() -> None:
    text = "# Why.\n\nbegin a\n----\nreads up to nothing\n\n# And then?\nabort a\n----\naborted\n"

    entries = list(parse(text))

    assert entries == [
        Remark("# Why."),
        Remark(""),
        Step(3, "begin a", ("reads up to nothing",)),
        Remark(""),
        Remark("# And then?"),
        Step(8, "abort a", ("aborted",)),
    ]
    assert render(entries) == text


def test_a_command_without_its_rule_is_no_script() -> None:
    with pytest.raises(ScriptError, match="line 1: 'begin a' is not followed by ----"):
        list(parse("begin a\nreads up to nothing\n"))


def test_every_script_begins_by_saying_what_it_promises() -> None:
    silent = [path.name for path in SCRIPTS if not path.read_text("utf-8").startswith("# ")]

    assert silent == []
