"""A planted bug counts as caught when each test that is named for it fails, and only then."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import try_out
from tests.mutants.planted import Mutant

NOTICES = "from answers import answer\n\n\ndef test_a() -> None:\n    assert answer() == 42\n"
SLEEPS = "def test_b() -> None:\n    pass\n"


@pytest.mark.parametrize(
    ("tests", "is_caught"),
    [(("test_a.py::test_a",), True), (("test_a.py::test_a", "test_b.py::test_b"), False)],
)
def test_every_test_that_is_named_has_to_notice(
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
