"""The commands of docs/pipelines.md run, line by line, on a server whose hours pass as it says."""

import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.program import run
from tests.cli.command import tuff_command
from tests.pipeline.conftest import Place
from tests.test_docs import WITH_HOURS, Block, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = WITH_HOURS.read_text("utf-8")
BLOCKS = list(blocks_of(WITH_HOURS, TEXT))
PROGRAMS = [block for block in BLOCKS if block.language == "sh"]
FIRST_DAY_COUNT = 5  # the blocks that need no second day
SHOWN = {
    block.line: shown.text.splitlines()
    for block, shown in pairwise(BLOCKS)
    if block.language == "sh" and shown.line == block.line + len(block.text.splitlines()) + 3
}


def passing_before(block: Block) -> list[str]:
    """How much time the page lets pass between the block before and this one."""
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
def test_the_walk_through_does_what_it_says(
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
    assert left[-1] == (b'{"type":"shipped"' if is_whole else b"try me again")
    assert len(left) == (1 if is_whole else 5)
    assert len(list(Path("archive/days").rglob("*.parquet"))) == is_whole


def test_the_page_lets_time_pass_and_shows_what_is_printed() -> None:
    passing = [time for block in PROGRAMS for time in passing_before(block)]

    assert passing == ["An hour", "A day", "An hour"]
    assert len(SHOWN) == 2
