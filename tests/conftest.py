"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.cli.forking import forked_tools
from tests.http.forking import forking
from tests.programs import summary
from tests.secret_values import require_no_secret
from tests.spark.session import spark_fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# The suite that the tests of each metadata store import, here and for HBase, shows both sides of a
# failed comparison, too. This comes before the first import of it.
pytest.register_assert_rewrite("tests.metadata.conformance", "tests.metadata.store_machine")

# Tests share two cores with others: how long one example takes says nothing about the code.
settings.register_profile(
    "tuff", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tuff")

# The tests start hundreds of processes. With this variable, each would compile its modules again,
# and pytest would rewrite the assertions of all tests again, which is half of their collection.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with SIGINT ignored, and the processes that the tests start would
# inherit that. Tests send them SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(scope="session", autouse=True)
def servers_are_forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process loads the server, and becomes all those that are to be like any other; and one
    becomes its offline tools."""
    with forking(), forked_tools(lambda: tmp_path_factory.mktemp("tools")):
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The one session of Spark, for all that need it; one JVM."""
    yield from spark_fixture(tmp_path_factory.mktemp("warehouse"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests stay until the end. Looking at them again and again took a third of their
    collection, and a tenth of their run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the scenario scripts print now into their files; read the diff",
    )
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail the tests that would be skipped here: a tool is missing that they need",
    )
    parser.addoption(
        "--list-passed", type=Path, metavar="FILE", help="write there which tests passed"
    )
    parser.addoption(
        "--without-passed",
        type=Path,
        metavar="FILE",
        help="leave out the tests of a list that --list-passed wrote: what ran is not run again",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = refuse_skip((yield), item.config)
    refuse_secrets(report)
    if report.skipped and "spark" in getattr(item, "fixturenames", ()):
        # Without Java they are skipped in one line together, and not in one each.
        report.longrepr = ("tests/spark", 1, report.longrepr[2])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return refuse_skip((yield), collector.config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the packages without which tests were skipped, and list the tests that passed."""
    if file := terminalreporter.config.getoption("--list-passed"):
        passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
        file.write_text("".join(f"{each}\n" for each in passed), "utf-8")
    skipped = terminalreporter.stats.get("skipped", [])
    if text := summary(report.longrepr[2] for report in skipped):
        terminalreporter.section("programs that are not installed")
        terminalreporter.line(text)


def refuse_secrets(report: pytest.TestReport) -> None:
    """Fail the test where what it logged or printed shows a secret. The output of a server is
    checked when the server ends."""
    try:
        for title, text in report.sections:
            require_no_secret(text, source=title)
    except AssertionError as error:
        report.outcome, report.longrepr = "failed", str(error)


def refuse_skip(report: R, config: pytest.Config) -> R:
    """A report of a failure, in place of one of a skip where nothing may be skipped."""
    is_expected = hasattr(report, "wasxfail")
    if report.skipped and not is_expected and config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and nothing may be: {report.longrepr}"
    return report


@cache
def shares_the_jvm(file: Path) -> bool:
    """Whether tests of this file take the fixture `spark`."""
    return file.suffix == ".py" and 'spark: "SparkSession"' in file.read_text("utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed before. In a worker, the tests with Spark take longest and come first,
    then those of large files."""
    if file := config.getoption("--without-passed"):
        passed = set(file.read_text("utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]
    if not hasattr(config, "workerinput"):
        return
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (not shares_the_jvm(item.path), -sizes[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: "Producer"
) -> "LoadFileScheduling | None":
    """With `--dist loadfile`: all tests with Spark in one worker, as a JVM takes a gigabyte."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    # It would put files in the order of their sizes, and the tests with Spark behind others.
    config.option.loadscopereorder = False

    class OneJvm(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "spark" if shares_the_jvm(config.rootpath / file) else file

    return OneJvm(config, log)
