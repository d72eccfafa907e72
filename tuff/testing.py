"""A pytest plug-in: a real server for tests of user code, and topics that are fresh per test.

It is active wherever the package is installed (`-p no:tuff.testing` turns it off), and starts
nothing until a test uses one of its fixtures. With pytest-xdist each worker has its own server.
"""

import re
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import pytest

import tuff
from tuff.launch import LaunchError, ServerProcess

NAMESPACE = "tests"
LOG_BYTES_MAX = 16 << 10  # bytes; a failed test shows only the end of the log
NAME_LENGTH_MAX = 100  # characters of a test's name; a topic's and a client's name may have 128

_LOG = pytest.StashKey[Path]()
_numbers = count(1)  # a test that runs again in the same session needs another topic


@pytest.fixture(scope="session")
def tuff_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ServerProcess]:
    """A server on a free port, with its data in a temporary directory; `tuff_server.url` is its
    address. It lives for the session, in a process of its own."""
    home = tmp_path_factory.mktemp("tuff")
    pytestconfig.stash[_LOG] = home / "log.txt"
    try:
        server = ServerProcess(home / "data", log=home / "log.txt")
    except LaunchError as error:
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@pytest.fixture
def tuff_client(
    tuff_server: ServerProcess, request: pytest.FixtureRequest
) -> Iterator["tuff.Client"]:
    """A client of that server, which others see under the name of the test."""
    with tuff.Client(tuff_server.url, client_id=_name(request)) as client:
        yield client


@pytest.fixture
def tuff_async_client(
    tuff_server: ServerProcess, request: pytest.FixtureRequest
) -> "tuff.AsyncClient":
    """An asyncio client of that server, which the test opens in its own event loop:
    `async with tuff_async_client as client: …`."""
    return tuff.AsyncClient(tuff_server.url, client_id=_name(request))


@pytest.fixture
def tuff_topic(tuff_client: "tuff.Client", request: pytest.FixtureRequest) -> "tuff.TopicId":
    """A new topic with nothing in it, named after the test."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:NAME_LENGTH_MAX]
    topic = tuff.TopicId(NAMESPACE, f"{words}-{next(_numbers)}")
    tuff_client.topics.create(topic)
    return topic


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test that used the server shows the end of the server's log."""
    report = yield
    log = item.config.stash.get(_LOG, None)
    if report.failed and log is not None and "tuff_server" in getattr(item, "fixturenames", ()):
        report.sections.append((f"tuff server ({log})", _end_of(log)))
    return report


def _name(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name.encode("ascii", "replace").decode("ascii")[:NAME_LENGTH_MAX]


def _end_of(log: Path) -> str:
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return "it was never started"
    return content[-LOG_BYTES_MAX:].decode("utf-8", "replace")
