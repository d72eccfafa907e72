"""One real server for all tests of this folder, and a factory for those that need their own."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.http.calls import Topic
from tests.http.client import Client, ok
from tests.http.forking import fork_server
from tests.http.over_session import ClientOverSession
from tests.http.process import ServerProcess, serve

_numbers = count()

# The modules whose tests are about calls that a session carries.
OVER_SESSIONS = {
    "test_isolation",
    "test_leases",
    "test_long_poll",
    "test_next_start",
    "test_poll",
    "test_prepared",
    "test_publish",
    "test_rollback",
    "test_stored_messages",
    "test_transaction_commit",
    "test_transaction_end",
    "test_share_groups",
    "test_transaction_run",
    "test_transaction_start",
    "test_visibility",
}

NewTopic = Callable[..., Topic]
NewServer = Callable[..., ServerProcess]
Launch = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The shared server, with default settings: each test uses topics of its own."""
    running = serve(tmp_path_factory.mktemp("server"))
    yield running
    running.end()


@pytest.fixture(autouse=True)
def stderr_is_shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the shared server logged during a test is shown with the test's own output."""
    if "server" not in request.fixturenames:
        yield
        return
    running: ServerProcess = request.getfixturevalue("server")
    before = len(running.stderr())
    yield
    said = running.stderr()[before:]
    print(said, end="")  # noqa: T201 - pytest shows it only beside a test that failed
    assert "Traceback" not in said, said


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of `OVER_SESSIONS` with both kinds of client."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in OVER_SESSIONS and "client" in metafunc.fixturenames:
        metafunc.parametrize("client", [Client, ClientOverSession], indirect=True)


@pytest.fixture
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    connection: Client = getattr(request, "param", Client)(server.port)
    yield connection
    connection.close()


@pytest.fixture
def new_topic(client: Client) -> NewTopic:
    """Creates topics that no other test uses, in a namespace of this test."""
    namespace = f"test-{next(_numbers)}"

    def make(properties: dict[str, object] | None = None, *, name: str = "") -> Topic:
        topic = Topic(client, namespace, name or f"topic-{next(_numbers)}")
        ok(topic.create(properties))
        return topic

    return make


@pytest.fixture
def topic(new_topic: NewTopic) -> Topic:
    """A fresh topic with the server's default properties."""
    return new_topic()


@pytest.fixture
def missing(client: Client) -> Topic:
    """A topic that does not exist."""
    return Topic(client, f"test-{next(_numbers)}", "missing")


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    """Starts servers of this test alone; `home` is where one keeps its data (default: a new one).

    Called again with the same `home` it continues on the data that is there.
    """
    started: list[ServerProcess] = []

    def start(*settings: str, home: Path | None = None) -> ServerProcess:
        place = tmp_path / f"server-{next(_numbers)}" if home is None else home
        running = serve(place, *settings)
        started.append(running)
        return running

    yield start
    for running in started:
        running.end()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts `server.py` with these very arguments, and does not wait for it to be ready.

    `is_forked` False: as users start it, for a test of what comes before `main`.
    """
    started: list[ServerProcess] = []

    def start(*arguments: str, home: Path | None = None, is_forked: bool = True) -> ServerProcess:
        place = tmp_path / "home" if home is None else home
        running = ServerProcess(place, *arguments, forks=fork_server() if is_forked else None)
        started.append(running)
        return running

    yield start
    for running in started:
        running.end()


def one_sentence(server: ServerProcess) -> str:
    """What a refused start said: one line on standard error, no stack trace, no ready line."""
    assert "tuff ready" not in server.stdout()
    said = server.stderr().strip()
    assert said, "a refused start says why"
    assert "Traceback" not in said
    return said
