"""Documents that lag behind the code fail here: programs are run, links and names are followed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cli.forking import forked_commands
from tests.http.process import ServerProcess, serve
from tests.programs import needs

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "snapshots").glob("*.md")]
)
PROGRAMS = {"sh", "python"}
OUTPUT = {"text", "json", "toml", "mermaid"}  # what is shown, and not run
OTHER_CLIENTS = {"python kafka-python", "python confluent-kafka"}  # only compiled: no broker here
WITH_SPARK = ROOT / "docs/spark.md"  # its programs are run in tests/spark, where there is a JVM
# Likewise in tests/pipeline, where hours pass at once.
WITH_HOURS = ROOT / "docs/pipelines.md"
WITH_AN_ARCHIVE = ROOT / "docs/howto/archive-reads.md"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
RUN_WITHIN_S = 300  # seconds; a page takes a few, and more than 60 on a machine with a load of 20

# Each error of the server ends the program; the newest flag of curl that is used is from 2021.
CURL = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it begins, what it says it is, and what it holds."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks_of(document: Path, text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line.startswith("```"):
            inside: list[str] = []
            for _, content in lines:
                if content.startswith("```"):
                    break
                inside.append(content)
            yield Block(document, number, line.removeprefix("```").strip(), "\n".join(inside))


BLOCKS = [
    block for document in DOCUMENTS for block in blocks_of(document, document.read_text("utf-8"))
]


def by_document(*languages: str) -> list[tuple[Path, list[Block]]]:
    """The programs of each document, in order: a later block goes on where the one before ended."""
    return [
        (document, found)
        for document in DOCUMENTS
        if (found := [b for b in BLOCKS if b.document == document and b.language in languages])
    ]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of this module's own, as a reader's is: nothing is in it yet."""
    running = serve(tmp_path_factory.mktemp("docs"))
    yield running
    running.end()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the program `tuff`."""
    directory = tmp_path_factory.mktemp("bin")
    with forked_commands(directory):
        yield directory


def run(
    command: list[str],
    program: str,
    server: ServerProcess,
    directory: Path,
    commands: Path | None = None,
) -> str:
    """What a program of a document prints, with this server in the place of the reader's, and with
    `commands` in that of other commands."""
    url = f"http://127.0.0.1:{server.port}"
    done = subprocess.run(
        command,
        input=program.replace("http://127.0.0.1:7411", url),
        cwd=directory,
        env={
            **os.environ,
            "TUFF_URL": url,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(directory),  # where the tutorial leaves its directory
            "PATH": ":".join([*map(str, filter(None, [commands])), PATH]),
        },
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_says_whether_it_is_a_program_or_what_one_shows() -> None:
    known = PROGRAMS | OUTPUT | OTHER_CLIENTS
    unknown = [f"{b}: {b.language!r}" for b in BLOCKS if b.language not in known]

    assert unknown == []


@needs("curl")
@pytest.mark.parametrize(
    ("document", "blocks"),
    [
        pytest.param(*each, id=each[0].name)
        for each in by_document("sh")
        if each[0] not in {WITH_HOURS, WITH_AN_ARCHIVE}
    ],
)
def test_the_shell_lines_of_a_page_do_what_it_says(
    document: Path,
    blocks: list[Block],
    server: ServerProcess,
    commands: Path,
    tmp_path: Path,
) -> None:
    lines = "\n".join(block.text for block in blocks).splitlines()
    # `make` lines would install or run this very test; that their target exists is tested below.
    program = "\n".join(line for line in lines if not line.startswith("make "))

    printed = run(["bash", "-euo", "pipefail"], CURL + program, server, tmp_path, commands)

    if document == ROOT / "README.md":
        assert re.search(r'"payload": ?"hello".*"payload": ?"world"', printed)
        assert '"writePointer"' in printed


@pytest.mark.parametrize(
    ("document", "blocks"),
    [
        pytest.param(*each, id=each[0].name)
        for each in by_document("python")
        if each[0] != WITH_SPARK
    ],
)
def test_the_python_lines_of_a_page_run(
    document: Path, blocks: list[Block], server: ServerProcess, tmp_path: Path
) -> None:
    program = "\n".join(block.text for block in blocks)

    run([sys.executable, "-W", "error", "-"], program, server, tmp_path)


@pytest.mark.parametrize("client", sorted(OTHER_CLIENTS))
def test_the_programs_for_other_clients_compile_and_name_nothing_unknown(
    client: str, tmp_path: Path
) -> None:
    """A broker is not needed to see that a block lacks an import, or uses a name of no block."""
    ((_, blocks),) = by_document(client)
    program = "\n".join(block.text for block in blocks)
    compile(program, client, "exec")
    page = tmp_path / "page.py"
    page.write_text(program, "utf-8")

    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F", page],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


def test_no_two_pages_keep_their_rows_in_one_directory() -> None:
    """The client page sold an apple of the tutorial's stock, which was not there."""
    pages: dict[str, set[str]] = {}
    for block in BLOCKS:
        for directory in re.findall(r'(?<!HBase)TransactionalTable\("([^"]+)"', block.text):
            pages.setdefault(directory, set()).add(block.document.name)

    assert {where: names for where, names in pages.items() if len(names) > 1} == {}
    assert {"tutorial.md"} in pages.values()


def test_a_page_installs_what_a_user_of_make_run_has_not() -> None:
    """A page about tests ran `pytest`, which only `make test` installs."""
    ours = installed_by("tuff-messaging")
    programs = {
        script.name: normal(script.dist.name)
        for script in entry_points(group="console_scripts")
        if script.dist is not None and normal(script.dist.name) not in ours
    }
    missing = [
        f"{block}: {word}"
        for document, blocks in by_document("sh")
        for block in blocks
        for word in re.findall(r"^(?:\S+/)?([\w.-]+)", block.text, re.MULTILINE)
        if word in programs and not any(f"install {programs[word]}" in each.text for each in blocks)
    ]

    assert "pytest" in programs
    assert missing == []


def installed_by(distribution: str) -> set[str]:
    """A distribution and all that it needs, without its extras."""
    found, left = set[str](), [normal(distribution)]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        left += [
            normal(needed.name)
            for needed in map(Requirement, requires(name) or ())
            if needed.marker is None or needed.marker.evaluate({"extra": ""})
        ]
    return found


def normal(name: str) -> str:
    """A distribution's name, as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "blocks"),
    [
        pytest.param(document, blocks, id=f"{document.name}, {language}")
        for language in ("sh", "python")
        for document, blocks in by_document(language)
        if document.parent.name == "howto" and document != WITH_AN_ARCHIVE
    ],
)
def test_who_runs_a_page_again_finds_nothing_in_the_way(
    document: Path, blocks: list[Block], server: ServerProcess, tmp_path: Path
) -> None:
    program = "\n".join(block.text for block in blocks)
    command = ["bash", "-euo", "pipefail"] if blocks[0].language == "sh" else [sys.executable, "-"]

    for _ in range(2):
        run(command, program, server, tmp_path)


def test_every_make_target_that_a_page_names_exists() -> None:
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", document.read_text("utf-8"), re.M)
    }

    assert named - targets() == set()
    assert {"run", "test", "check", "demo"} <= named


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {link}"
        for document in DOCUMENTS
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text("utf-8"))
        if not (document.parent / link).exists()
    ]

    assert broken == []


def test_every_page_can_be_found_from_the_map() -> None:
    text = (ROOT / "docs/README.md").read_text("utf-8")
    lost = [
        document.name
        for document in (ROOT / "docs").glob("*.md")
        if f"({document.name})" not in text
    ]

    assert lost == ["README.md"]


def test_every_statement_about_another_system_has_a_source_that_is_listed() -> None:
    text = (ROOT / "docs/comparison.md").read_text("utf-8")
    tables, _, listed = text.partition("\n## Sources\n")
    sources = re.findall(r"^- \[(\w+)\] .*<https://", listed, re.MULTILINE)
    cells = [
        (system, cell)
        for line in tables.splitlines()
        if line.startswith("| ") and not line.startswith("| |")
        for system, cell in zip("KRPN", line.strip("|").split("|")[2:], strict=True)
    ]
    bare = [cell for _, cell in cells if cell.strip() and not re.search(r"\[\w+\]|\(\d\)", cell)]
    foreign = [cell for system, cell in cells if set(re.findall(r"\[(\w)\d+\]", cell)) - {system}]

    assert bare == []
    assert foreign == []
    assert set(re.findall(r"\[([A-Z]\d+)\]", tables)) == set(sources)
    assert len(cells) > 100


def test_every_section_that_the_code_cites_exists() -> None:
    headings = {
        "design": (ROOT / "docs/architecture.md").read_text("utf-8"),
        "protocol": (ROOT / "docs/protocol.md").read_text("utf-8"),
    }
    there = {
        (page, number)
        for page, text in headings.items()
        for number in re.findall(r"^#+ ([0-9.]+?)\.? ", text, re.MULTILINE)
    }
    cited = {
        (page, number)
        for folder in (
            "tuff",
            "pyspark_tuff",
            "tx",
            "messaging",
            "process",
            "admin",
            "tests",
            "examples",
        )
        for path in (ROOT / folder).rglob("*.py")
        for page, numbers in re.findall(
            r"\b(design|protocol) (§[0-9.]+(?:(?:, | to | and )§[0-9.]+)*)", path.read_text("utf-8")
        )
        for number in re.findall(r"§([0-9]+(?:\.[0-9]+)?)", numbers)
    }

    assert cited - there == set()
    assert len(cited) > 10


def test_decisions_are_numbered_without_a_gap_and_say_what_they_cost() -> None:
    records = sorted((ROOT / "docs/decisions").glob("*.md"))

    for number, record in enumerate(records, 1):
        text = record.read_text("utf-8")
        assert record.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number:04}: ")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
            "Context", "Decision", "Consequences",
        ]  # fmt: skip


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)

    assert headings[0] == "Unreleased"
    assert "Compatibility" in headings


def test_every_test_that_the_page_about_security_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/security.md").read_text())

    assert named
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(), f"{file}::{test}"


def test_every_path_that_a_page_names_exists() -> None:
    folders = "|".join(sorted(path.name for path in ROOT.iterdir() if path.name.isidentifier()))
    # A wildcard, a placeholder or what a program of the page makes is no path of the project.
    pattern = re.compile(
        rf"(?<![\w./-])(?:{folders})/[\w./-]*\w\.(?:py|md|toml|java|yml|json|go)\b"
    )
    lost = [
        f"{document.relative_to(ROOT)}: {path}"
        for document in DOCUMENTS
        for path in sorted(set(pattern.findall(document.read_text("utf-8"))))
        if not (ROOT / path).exists() and not (document.parent / path).exists()
    ]

    assert lost == []


def test_a_fence_is_read_with_its_language_and_its_place() -> None:
    text = "a\n```sh\necho 1\n```\nb\n```text\n2\n```\n"

    assert list(blocks_of(ROOT / "x.md", text)) == [
        Block(ROOT / "x.md", 2, "sh", "echo 1"),
        Block(ROOT / "x.md", 6, "text", "2"),
    ]
