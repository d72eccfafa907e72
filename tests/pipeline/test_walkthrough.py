"""The commands of docs/pipelines.md run, line by line, as its clock advances."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet

from pipeline.command import run
from tests.cli.command import tuff_command
from tests.messaging.archives import SCHEMA
from tests.pipeline.conftest import Place
from tests.spark.session import set_up
from tests.test_docs import WITH_AN_ARCHIVE, WITH_HOURS, Block, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_COUNT = 120  # of the catalogue example
ROOT = Path(__file__).resolve().parents[2]
TEXT = WITH_HOURS.read_text("utf-8")
BLOCKS = list(blocks_of(WITH_HOURS, TEXT))
TRY_OUT, *PROGRAMS = [block for block in BLOCKS if block.language == "sh"]
FIRST_DAY_COUNT = 5  # the blocks that need no second day
SHOWN = {
    block.line: shown.text.splitlines()
    for block, shown in pairwise(BLOCKS)
    if block in PROGRAMS and shown.line == block.line + len(block.text.splitlines()) + 3
}


def passing_before(block: Block) -> list[str]:
    """The times that pass on the page between the block before and this one."""
    before = max((each.line for each in PROGRAMS if each.line < block.line), default=0)
    prose = "\n".join(TEXT.splitlines()[before : block.line])
    return re.findall(r"^\*\*(An hour|A day) later\*\*", prose, re.MULTILINE)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(FIRST_DAY_COUNT, id="the first day"),
        pytest.param(len(PROGRAMS), id="all days", marks=pytest.mark.slow),
    ],
)
def test_the_commands_of_the_walk_through_run(
    spark: "SparkSession",
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
) -> None:
    def printed_by(line: str) -> str:
        # Each test has topics of its own; the name on the page is a part of all of them.
        line = line.replace("shop:orders", str(place.topic))
        program, *words = shlex.split(line)
        if program == "tuff":
            done = tuff_command(*words, url=place.client.url)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            return done.stdout
        assert program == "tuff-pipeline"
        code = run(words)
        printed = capsys.readouterr()
        assert code == 0, f"{line}: {printed.err}"
        return printed.out

    place.client.topics.delete(place.topic)
    monkeypatch.chdir(place.home)
    monkeypatch.setenv("TUFF_URL", place.client.url)
    place.clock.begin_day()
    passes: dict[str, Callable[[], None]] = {
        "An hour": place.clock.pass_hours,
        "A day": place.clock.begin_day,
    }
    for block in PROGRAMS[:count]:
        for time in passing_before(block):
            passes[time]()
        printed = "".join(printed_by(line) for line in block.text.splitlines())
        printed = printed.replace(str(place.topic), "shop:orders")
        printed = re.sub(r"generation \d+", "generation 1", printed)
        assert printed.splitlines() == SHOWN.get(block.line, printed.splitlines()), str(block)

    is_whole = count == len(PROGRAMS)
    left = [each.split(b",")[0] for each in place.read(place.topic)]
    assert left[-1] == (b'{"type":"shipped"' if is_whole else b'{"type":"paid"')
    assert len(left) == (1 if is_whole else 4)
    assert len(list(Path("archive/days").rglob("*.parquet"))) == is_whole


def printed_by_unchanged(program: str, directory: Path) -> list[str]:
    """The lines that a program of a page prints, with a server of its own."""
    set_up()
    (directory / "examples").symlink_to(ROOT / "examples")
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])

    done = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=program.replace("7411", port),
        cwd=directory,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,  # a bound on what hangs; two starts of Spark on a busy machine
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_commands_of_the_two_minute_example_run_unchanged(
    needs_spark: None, tmp_path: Path
) -> None:
    lines = printed_by_unchanged(TRY_OUT.text, tmp_path)

    events = ['{"type":"placed","entity":"order-1"}', '{"type":"paid","entity":"order-1"}']
    for sentence in ("3 messages of shop:orders in 1 hour archived", "replayed to"):
        assert sentence in "\n".join(lines)
    tailed = lines[-4:]
    assert '"shipped"' in tailed[0]
    for line, payload in zip(tailed[1:], [*events, "half an ev"], strict=True):
        assert line.endswith(payload)


@pytest.mark.slow
def test_a_server_reads_what_the_job_has_archived_as_the_page_about_it_says(
    needs_spark: None, tmp_path: Path
) -> None:
    (program,) = blocks_of(WITH_AN_ARCHIVE, WITH_AN_ARCHIVE.read_text("utf-8"))

    lines = printed_by_unchanged(program.text, tmp_path)

    tailed = [line for line in lines if line.endswith(("first", "second", "third"))]
    assert [line.split()[-1] for line in tailed] == ["third", "first", "second", "third"]
    assert "Tuff-Archive: true" in lines
    offsets = json.loads(lines[-1].rpartition("]")[2])
    assert offsets["archivedFrom"] < offsets["earliest"] == offsets["end"]
    (file,) = (tmp_path / "tryout/archive/hours").rglob("*.parquet")
    written = parquet.ParquetFile(file)
    assert written.schema_arrow.remove_metadata() == SCHEMA
    assert written.metadata.row_group(0).column(0).statistics.has_min_max


def test_the_page_lets_time_pass_and_shows_what_is_printed() -> None:
    passing = [time for block in PROGRAMS for time in passing_before(block)]

    assert passing == ["An hour", "A day", "An hour"]
    assert len(SHOWN) == 2


def result_of(
    capsys: pytest.CaptureFixture[str], place: Place, *arguments: object
) -> dict[str, object]:
    """What a command that succeeds prints as JSON."""
    words = ["--url", place.client.url, *map(str, arguments), "--json"]
    code = run(words)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


def announce_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue example on a directory that changes, over two hours."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from catalog import Catalogue

    files = place.home / "files"
    files.mkdir()
    for number in range(FILE_COUNT):
        (files / f"{number}.txt").write_text(f"file {number}\n")
    catalogue = Catalogue(place.client, place.home / "catalogue.sqlite", place.topic)
    catalogue.update(files)
    place.clock.pass_hours()
    for number in range(10):
        (files / f"{number}.txt").unlink()
    catalogue.update(files)
    place.clock.pass_hours()
    (files / "last.txt").write_text("closes the hour before\n")
    catalogue.update(files)
    catalogue.rows.close()


@pytest.mark.slow
def test_the_catalogues_topic_is_archived_audited_and_replayed_the_same(
    spark: "SparkSession",
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce_files(place, monkeypatch)
    announced, target = place.read(place.topic), place.other("-again")
    root, out = place.home / "archive", place.home / "audit"
    members = ("--kind", "change", "--entity", "path", "--dataset", "path", "--access", "change")

    archived = result_of(capsys, place, "archive", place.topic, "--root", root, "--truncate")
    audited = result_of(capsys, place, "audit", place.topic, "--root", root, "--out", out, *members)
    replayed = result_of(capsys, place, "replay", place.topic, "--root", root, "--to", target)

    count = FILE_COUNT + 10
    assert len(announced) == count + 1
    assert (archived["messages"], audited["messages"], replayed["messages"]) == (count,) * 3
    assert place.read(target) == announced[:-1]
    assert place.read(place.topic) == announced[-1:]
    kinds = spark.read.parquet(str(out / "counts")).groupBy("kind").sum("count")
    assert dict(map(tuple, kinds.collect())) == {"added": FILE_COUNT, "removed": 10}
    assert spark.read.parquet(str(out / "edges")).select("dataset").distinct().count() == FILE_COUNT
    assert place.dead_letters == []
