"""House rules that no linter knows (docs/style.md). Each rule is seen to catch an offence."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path

import pytest

from tests.programs import find, needs

ROOT = Path(__file__).resolve().parents[1]

FUNCTION_LINE_COUNT_MAX = 50  # lines of a function: one screen

CODE = (
    "tuff", "tuff_cli", "tuff_storage", "pyspark_tuff", "pyspark_tuff_table", "pipeline", "kernel",
    "tx", "messaging", "metadata", "access", "cluster", "console", "process", "admin", "tests",
    "examples", "benchmarks",
)  # fmt: skip
TEXT_SUFFIXES = {".md", ".py", ".toml"}
TEXT_FILES = {"Makefile", ".ci/run", ".gitignore"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "types", "misc", "shared"}
ROOT_FILES = {
    ".ci", ".dockerignore", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "Containerfile",
    "LICENSE", "Makefile", "README.md", "access", "admin", "benchmarks", "cluster", "conf",
    "console", "coprocessor", "docs", "examples", "kernel", "messaging", "metadata",
    "pipeline", "process", "pyproject.toml", "pyspark_tuff",
    "pyspark_tuff_table", "server.py", "snapshots", "tests", "tuff", "tuff_cli",
    "tuff_storage", "tx",
}  # fmt: skip
MAY_SLEEP = ("tests/http/", "tests/faults/")  # real processes: they wait for what they can't drive


@cache
def tracked(root: Path = ROOT) -> tuple[Path, ...]:
    """The project's own files: other files in this directory are the user's, and not judged.

    Without git, as in an unpacked source distribution, every file is taken for the project's.
    """
    if find("git") is None:
        return everything(root)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False, text=True
    )
    if listed.returncode != 0:
        return everything(root)
    paths = (root / name for name in listed.stdout.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def everything(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in root.rglob("*") if path.is_file()))


def modules() -> list[Path]:
    return [
        path
        for path in tracked()
        if path.suffix == ".py" and (path.parent == ROOT or top(path) in CODE)
    ]


def texts() -> list[Path]:
    deep = {*CODE, "docs", "conf", "snapshots"}
    return [
        path
        for path in tracked()
        if (path.suffix in TEXT_SUFFIXES and top(path) in deep)
        or (path.parent == ROOT and path.suffix in TEXT_SUFFIXES)
        or name(path) in TEXT_FILES
    ]


def top(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@lru_cache(maxsize=1)  # for the rules that judge one module after the other
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@lru_cache(maxsize=1)
def definitions(source: str) -> list[ast.AST]:
    """The module, and its classes and functions: these are statements, and to walk through all
    expressions takes as long as to parse them."""
    found: list[ast.AST] = []
    left: list[ast.AST] = [parsed(source)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, part, ())
    return found


def without_docstring(source: str) -> Iterator[str]:
    if source.strip() and ast.get_docstring(parsed(source)) is None:
        yield "has no docstring that says its purpose"


def long_functions(source: str) -> Iterator[str]:
    for node in definitions(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            count = (node.end_lineno or first) - first + 1
            if count > FUNCTION_LINE_COUNT_MAX:
                yield f"{node.name} has {count} lines, and {FUNCTION_LINE_COUNT_MAX} fit a screen"


def unnamed_subjects(source: str) -> Iterator[str]:
    """Docstrings that begin with a reference to something else, in place of their subject."""
    for node in definitions(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if re.match(r"The same\b|Those\b|As `|As [A-Z]", docstring):
                yield f"{docstring.splitlines()[0]!r} names no subject"


def sleeps(source: str) -> Iterator[str]:
    if "sleep" not in source:
        return
    for node in ast.walk(parsed(source)):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called == "sleep" and ast.unparse(node.args[0]) != "0":
            yield f"line {node.lineno} sleeps: drive the clock, and wait for nothing"


def late_marks(source: str) -> Iterator[str]:
    marks = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"))
    for found in re.finditer(rf"\b({marks})\b", source):
        number = source.count("\n", 0, found.end()) + 1
        yield f"line {number} puts something off: do it, or open an issue"


def strangers(source: str) -> Iterator[str]:
    """Places that exist on one machine, and hosts of package registries."""
    places = r"(^|[\s\"'`(=])/(work|root|home|tmp)/\w"
    hosts = r"[p]ypi\.org|[p]ythonhosted|[m]aven\.org|[n]pmjs|[c]rates\.io|[p]roxy\.golang"
    papers = r"\b(PROTOCOL|DESIGN|STYLE|CLIENT)(\.md| §)"
    for found in re.finditer(f"{places}|{hosts}|{papers}", source, re.MULTILINE):
        number = source.count("\n", 0, found.end()) + 1
        yield f"line {number} names a place outside of the project"


def bare_suppressions(source: str) -> Iterator[str]:
    reasoned = re.compile(
        r"# noqa: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)* - \w|# type: ignore\[[a-z, -]+\] {1,2}# \w"
    )
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"# (noqa\b|type: ignore)", line) and not reasoned.search(line):
            yield f"line {number} switches a check off without a code and a reason"


Rule = Callable[[str], Iterator[str]]
TREE_RULES: tuple[Rule, ...] = (without_docstring, long_functions, unnamed_subjects, sleeps)


@cache
def faults(path: Path) -> Mapping[Rule, list[str]]:
    """What the rules about syntax trees find. They judge a module together, and its tree is not
    kept: the garbage collector would look through all trees again and again, which takes longer
    than to parse them."""
    source = path.read_text("utf-8")
    return {rule: list(rule(source)) for rule in TREE_RULES}


def offences(rule: Rule, paths: list[Path]) -> list[str]:
    """What a rule about lines finds."""
    return [f"{name(path)}: {fault}" for path in paths for fault in rule(path.read_text("utf-8"))]


def tree_offences(rule: Rule, paths: list[Path]) -> list[str]:
    """What a rule about syntax trees finds."""
    return [f"{name(path)}: {fault}" for path in paths for fault in faults(path)[rule]]


def test_every_module_says_its_purpose() -> None:
    assert tree_offences(without_docstring, modules()) == []


def test_every_function_fits_a_screen() -> None:
    assert tree_offences(long_functions, modules()) == []


def test_every_docstring_names_its_subject() -> None:
    judged = [path for path in modules() if not name(path).startswith("tests/")]

    assert tree_offences(unnamed_subjects, judged) == []


def test_every_module_has_the_name_of_what_it_knows() -> None:
    vague = [name(path) for path in modules() if {path.stem, path.parent.name} & VAGUE_NAMES]

    assert vague == []


def test_the_init_of_a_component_holds_a_docstring_only() -> None:
    """Importing a value must not load the service beside it."""
    full = [
        name(path)
        for path in modules()
        if path.name == "__init__.py"
        and path != ROOT / "tuff/__init__.py"
        and not name(path).startswith(("pyspark_", "tuff_cli/", "tests/"))
        and len(ast.parse(path.read_text("utf-8")).body) > 1
    ]

    assert full == []


def test_no_test_sleeps_to_let_it_happen() -> None:
    tests = [
        path
        for path in modules()
        if name(path).startswith("tests/") and not name(path).startswith(MAY_SLEEP)
    ]

    assert tree_offences(sleeps, tests) == []


def test_nothing_is_put_off_in_the_sources() -> None:
    assert offences(late_marks, texts()) == []


def test_nothing_names_a_machine_or_a_registry() -> None:
    assert offences(strangers, [path for path in texts() if path != Path(__file__)]) == []


def test_every_check_that_is_switched_off_has_a_code_and_a_reason() -> None:
    sources = [path for path in modules() if path != Path(__file__)]

    assert offences(bare_suppressions, sources) == []


@needs("git")
def test_the_root_holds_what_a_newcomer_looks_for_and_nothing_else() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: a virtual environment may be in it")
    assert {top(path) for path in tracked()} == ROOT_FILES


@needs("git")
def test_a_file_of_the_users_own_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "tuff.py").touch()
    (tmp_path / "run.log").touch()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "tuff.py"], cwd=tmp_path, check=True)

    assert tracked(tmp_path) == (tmp_path / "tuff.py",)


@pytest.mark.parametrize(
    ("rule", "offence"),
    [
        (without_docstring, "import os\n"),
        (long_functions, "def f():\n" + "    pass\n" * FUNCTION_LINE_COUNT_MAX),
        (long_functions, "@a\ndef f():\n" + "    pass\n" * (FUNCTION_LINE_COUNT_MAX - 1)),
        (unnamed_subjects, 'def f():\n    """As `g`."""\n'),
        (unnamed_subjects, 'class C:\n    """The same again."""\n'),
        (unnamed_subjects, '"""Those."""\n'),
        (sleeps, "import time\ntime.sleep(0.1)\n"),
        (sleeps, "await asyncio.sleep(pause)\n"),
        (late_marks, "# TO" + "DO: later\n"),
        (strangers, "see /wor" + "k/main/x\n"),
        (strangers, "https://py" + "pi.org/simple\n"),
        (strangers, "(PROTO" + "COL §1)\n"),
        (bare_suppressions, "x = 1  # no" + "qa\n"),
        (bare_suppressions, "x = 1  # no" + "qa: E501\n"),
        (bare_suppressions, "x = 1  # type: ig" + "nore[arg-type]\n"),
    ],
)
def test_each_rule_catches_its_offence(rule: Rule, offence: str) -> None:
    assert len(list(rule(offence))) == 1


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (without_docstring, '"""Why."""\n'),
        (long_functions, "def f():\n" + "    pass\n" * (FUNCTION_LINE_COUNT_MAX - 1)),
        (unnamed_subjects, 'def f():\n    """A copy, as `g` makes it."""\n'),
        (sleeps, "await asyncio.sleep(0)\n"),
        (strangers, "the server's /homepage is at /v1/work/\n"),
        (bare_suppressions, "x = 1  # no" + "qa: E501 - the reason\n"),
        (bare_suppressions, "x = 1  # type: ig" + "nore[arg-type]  # the reason\n"),
    ],
)
def test_no_rule_catches_what_is_right(rule: Rule, source: str) -> None:
    assert list(rule(source)) == []
