"""A real server for the module, and a client, a fresh topic and an empty table for each test."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import tuff
from tests.http.process import ServerProcess, serve

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.Client(server.url, client_id="tests") as made:
        yield made


@pytest.fixture
def topic(client: tuff.Client) -> tuff.TopicId:
    made = tuff.TopicId("client", f"topic-{next(_numbers)}")
    client.topics.create(made)
    return made


@pytest.fixture
def table(tmp_path: Path) -> Iterator[tuff.TransactionalTable]:
    with tuff.TransactionalTable(tmp_path / "table") as opened:
        yield opened
