"""Each command, setting and metric that a page names exists, and each statement of the comparison
about Tuff has a test or a page."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from pipeline.command import program as pipeline
from process.settings import SECTIONS, key_of
from tuff.blocking.context import TransactionContext
from tuff.protocol.operations import OPERATIONS
from tuff_cli.program import program as tuff

ROOT = Path(__file__).resolve().parents[1]
# A decision record and the changelog may name what is not there any more.
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if "decisions" not in page.parts and page.name != "CHANGELOG.md"
]
COMPARISON = ROOT / "docs/comparison.md"
PROGRAMS: dict[str, click.Group] = {"tuff": tuff, "tuff-pipeline": pipeline}
COMMAND = re.compile(r"(?<![\w./:-])(tuff|tuff-pipeline)((?: [^\s`'\"|;&()<>]+)+)")
WORD = re.compile(r"[a-z][a-z-]*")
OPTION = re.compile(r"--[a-z][a-z-]*")
# Not our command: what the server prints, and options of other programs behind a unit or an image.
OTHERS = ("tuff ready on", "tuff --since", "tuff --grep", "tuff --publish", "tuff --volume")
SERVER_OPTIONS = {"--config", "--data", "--host", "--port", "--set", "--until-stdin-closes"}
SETTING = re.compile(rf"(?:{'|'.join(SECTIONS)})\.[a-z_]+(?![\w/(.])")
# A name with a dot in it that is no setting: an attribute of OpenTelemetry, a module, a field.
OTHER_NAMES = {"messaging.system", "messaging.storage", "tx.transaction_id"}
METRIC = re.compile(r"\btuff_[a-z0-9_]+")
# Names that begin like those of metrics: tables and rows in databases, modules and packages.
SOURCES = ("access", "admin", "cluster", "messaging", "process", "pyspark_tuff",
           "pyspark_tuff_table", "tests", "tuff", "tuff_cli",
           "tuff_storage", "tx")  # fmt: skip
# What the comparison says that Tuff has not, by words that would name it in a call or a setting.
MISSING = {
    "Retention by size": ("retention_bytes", "max_topic_bytes", "retention_messages"),
    "Compaction by key": ("compact",),
    "Schema registry": ("schema", "registry"),
}


def codes_of(page: Path) -> Iterator[tuple[str, str]]:
    """The code of a page, in blocks and within lines, each with its place."""
    is_block = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        place = f"{page.relative_to(ROOT)}:{number}"
        if line.startswith("```"):
            is_block = not is_block
        elif is_block:
            yield place, line
        else:
            yield from ((place, span) for span in re.findall(r"`([^`]+)`", line))


CODES = [each for page in PAGES for each in codes_of(page)]


def wrong_in(program: str, rest: str) -> str | None:
    """What a command line names that does not exist."""
    words = rest.split()
    command: click.Command = PROGRAMS[program]
    path = [program]
    while isinstance(command, click.Group) and words and WORD.fullmatch(words[0]):
        path.append(words.pop(0))
        found = command.commands.get(path[-1])
        if found is None:
            return " ".join(path)
        command = found
    known = {"--help", *SERVER_OPTIONS} if path[1:] == ["serve"] else {"--help"}
    for each in (PROGRAMS[program], command):
        known |= {name for parameter in each.params for name in parameter.opts}
    given = (option[0] for word in words if (option := OPTION.match(word)))
    return next((f"{' '.join(path)} {name}" for name in given if name not in known), None)


def test_each_command_and_option_that_a_page_names_exists() -> None:
    """Two pages named commands that were renamed long ago, and one a command that never was."""
    named = [(place, found) for place, code in CODES for found in COMMAND.finditer(code)]
    wrong = [
        f"{place}: {name}"
        for place, found in named
        if not found[0].startswith(OTHERS) and (name := wrong_in(found[1], found[2])) is not None
    ]

    assert wrong == []
    assert len(named) > 300


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("topics truncate t --before 1d", None),
        ("serve --set tx.max_timeout=5", None),
        ("lag", "tuff lag"),
        ("topics trunkate t", "tuff topics trunkate"),
        ("tail t --tag x", "tuff tail --tag"),
    ],
)
def test_a_command_line_is_followed_to_its_options(line: str, wrong: str | None) -> None:
    assert wrong_in("tuff", line) == wrong


def test_each_setting_that_a_page_names_exists() -> None:
    known = {f"{name}.{key_of(each)}" for name, kind in SECTIONS.items() for each in fields(kind)}
    known |= {f"tx.{name}" for name in dir(TransactionContext)} | OTHER_NAMES
    named = [
        (place, found[0])
        for place, code in CODES
        for found in SETTING.finditer(code)
        if not re.match(r"[\w./-]", code[found.start() - 1 : found.start()])
        and not found[0].endswith((".md", ".py", ".toml"))
    ]

    assert [f"{place}: {name}" for place, name in named if name not in known] == []
    assert len(named) > 200


def test_each_metric_that_a_page_names_exists() -> None:
    texts = [path for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    source = "\n".join(path.read_text("utf-8") for path in texts)
    strings = set(re.findall(r"(?:[\"'{]|\bdef )([a-z][a-z0-9_]*)", source))
    named = [(place, found) for place, code in CODES for found in METRIC.findall(code)]
    wrong = [
        f"{place}: {name}"
        for place, name in named
        if not {name, *_stems(name.removeprefix("tuff_"))} & strings
        and not (ROOT / name).exists()
        and not (ROOT / f"pyspark_{name}").exists()
    ]

    assert wrong == []
    assert len(named) > 100


def _stems(name: str) -> set[str]:
    return {name, re.sub(r"_(total|bucket|count|sum)$", "", name)}


def statements_of_tuff() -> dict[str, str]:
    """What the comparison says of Tuff, by the first cell of the row."""
    rows = (line.split("|")[1:-1] for line in COMPARISON.read_text("utf-8").splitlines()
            if line.startswith("| ") and not line.startswith("| |"))  # fmt: skip
    return {cells[0].strip(): cells[1].strip() for cells in rows if len(cells) > 3}


def test_each_statement_of_the_comparison_about_tuff_has_a_test_or_a_page() -> None:
    """It said that authorisation and shared consumption were missing, which they were not."""
    text = COMPARISON.read_text("utf-8").partition("\n## Evidence for Tuff\n")[2]
    evidence = dict(re.findall(r"^- ([^:\n]+): (.+)$", text.partition("\n## ")[0], re.MULTILINE))
    stated = statements_of_tuff()

    assert evidence.keys() | MISSING.keys() == stated.keys()
    assert {name for name, said in stated.items() if said == "no"} == MISSING.keys()
    for name, where in evidence.items():
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", where)
        assert tests or re.search(r"\]\([^)]+\)", where), name
        for file, test in tests:
            assert test in _functions(ROOT / file), f"{name}: {file}::{test}"


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in tree.body if isinstance(each, kinds)}


def test_what_the_comparison_says_is_missing_has_no_call_and_no_setting() -> None:
    settings = {key_of(each) for kind in SECTIONS.values() for each in fields(kind)}
    names = [f"{each.path} {each.name}".lower() for each in OPERATIONS] + sorted(settings)

    for row, words in MISSING.items():
        assert [name for name in names if any(word in name for word in words)] == [], row
