"""A planted bug counts as caught only if each test that is named for it fails."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS, ROOT, misplaced, try_out
from tests.mutants.planted import Mutant

NOTICES = "from answers import answer\n\n\ndef test_a() -> None:\n    assert answer() == 42\n"
SLEEPS = "def test_b() -> None:\n    pass\n"


@pytest.mark.parametrize(
    ("tests", "is_caught"),
    [(("test_a.py::test_a",), True), (("test_a.py::test_a", "test_b.py::test_b"), False)],
)
def test_every_named_test_has_to_fail(
    tmp_path: Path, tests: tuple[str, ...], *, is_caught: bool
) -> None:
    code = "def answer() -> int:\n    return 42\n"
    files = {"answers.py": code, "test_a.py": NOTICES, "test_b.py": SLEEPS}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    mutant = Mutant(bug="b", file="answers.py", text="42", instead="41", tests=tests)

    verdict = try_out(mutant, tmp_path, {})

    assert verdict.caught is is_caught
    assert (tmp_path / "answers.py").read_text() == code


def test_each_test_that_a_planted_bug_names_is_there() -> None:
    """Otherwise only the long run would notice that a named test was renamed."""
    named = {test.partition("[")[0] for mutant in MUTANTS for test in mutant.tests}

    missing = [test for test in sorted(named) if not is_there(*test.split("::"))]

    assert missing == []


def test_each_text_to_replace_is_exactly_once_in_its_file() -> None:
    assert [mutant.bug for mutant in MUTANTS if misplaced(mutant)] == []


def test_each_planted_bug_leaves_a_module_that_compiles() -> None:
    """A bug that does not compile would make every test fail."""
    for mutant in MUTANTS:
        planted = (ROOT / mutant.file).read_text("utf-8").replace(mutant.text, mutant.instead)
        if mutant.file.endswith(".py"):
            compile(planted, mutant.bug, "exec")


def is_there(file: str, *names: str) -> bool:
    path = ROOT / file
    return path.is_file() and all(name in path.read_text() for name in names if name != "runTest")
