"""When a server that does not reach HBase or the shared directory ends, and how it finds out."""

import asyncio
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any, TypeVar

import pytest

from cluster.reach import READ_COUNTS_S, Reach, may_lead, why_replaceable
from metadata.member_records import ServerInfo

T = TypeVar("T")

STORE_ID = "c" * 32
OTHER_STORE_ID = "d" * 32
COUNT_MAX = 6  # comparisons


def other(*, hbase: bool = True, directory: bool = True, draining: bool = False) -> ServerInfo:
    return ServerInfo(
        server_id="s2",
        address="http://s2:7411",
        incarnation=1,
        started_ms=0,
        topics=0,
        is_draining=draining,
        reaches_hbase=hbase,
        reaches_directory=directory,
    )


def reason(
    *others: ServerInfo, hbase: bool = True, directory: bool = True, leads: bool = True
) -> str | None:
    return why_replaceable(hbase=hbase, directory=directory, leads=leads, others=others)


def test_another_server_that_reaches_hbase_can_replace_one_that_does_not() -> None:
    assert reason(other(hbase=False), other(directory=False), hbase=False, leads=False) == (
        "this server does not reach HBase, and the server s2 does and can take its topics over"
    )


def test_another_server_that_reaches_both_can_replace_a_leader_without_the_directory() -> None:
    assert reason(other(directory=False), other(), directory=False) == (
        "this server leads transactions and does not reach the shared directory, and the server s2 "
        "does and can lead"
    )


@pytest.mark.parametrize("lost", ["hbase", "directory"])
def test_a_server_is_not_replaceable_while_no_other_one_can_do_its_work(lost: str) -> None:
    def found(*others: ServerInfo) -> str | None:
        return reason(*others, hbase=lost != "hbase", directory=lost != "directory")

    assert found() is None
    assert found(other(hbase=False, directory=False)) is None
    assert found(other(draining=True)) is None
    assert found(other()) is not None


def test_a_server_that_reaches_everything_is_not_replaceable() -> None:
    assert reason(other()) is None


def test_a_server_that_does_not_reach_hbase_does_not_count_as_one_that_can_lead() -> None:
    assert reason(other(hbase=False), directory=False) is None


def test_of_two_servers_that_each_lack_something_else_one_is_replaceable() -> None:
    without_hbase = other(hbase=False, directory=True)
    leader_without_directory = other(hbase=True, directory=False)

    assert reason(leader_without_directory, hbase=False, leads=False) is not None
    assert reason(without_hbase, directory=False, leads=True) is None


def test_a_server_that_lacks_something_leaves_the_election_to_one_that_reaches_everything() -> None:
    able, without_hbase = other(), other(hbase=False)
    without_directory = other(directory=False)

    assert may_lead(hbase=True, directory=True, others=[able])
    for hbase, directory in ((True, False), (False, True), (False, False)):
        assert not may_lead(hbase=hbase, directory=directory, others=[without_hbase, able])
        assert not may_lead(hbase=hbase, directory=directory, others=[other(draining=True)])
        others = [without_hbase, without_directory]
        assert may_lead(hbase=hbase, directory=directory, others=others)
        assert may_lead(hbase=hbase, directory=directory, others=[])


def test_only_a_leader_needs_the_directory() -> None:
    assert reason(other(), directory=False, leads=False) is None


class Server:
    """What one server reaches, on a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.reaches_hbase = True
        self.read: Callable[[], str | None] = lambda: STORE_ID
        self.read_count = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.reach = Reach(
            reaches_hbase=lambda: self.reaches_hbase,
            read_store_id=self._read,
            in_thread=asyncio.to_thread,
            spawn=self._spawn,
            elapsed_s=lambda: self.now_s,
        )

    def _read(self) -> str | None:
        self.read_count += 1
        return self.read()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def look(self, count: int = 1) -> None:
        """Look so often, each a second after the one before; reads of the directory end."""
        for _ in range(count):
            self.now_s += 1.0
            self.reach.look(STORE_ID)
            await asyncio.gather(*self.tasks)


async def test_what_was_not_checked_yet_is_not_reached() -> None:
    server = Server()

    assert (server.reach.hbase, server.reach.directory) == (False, False)

    await server.look(2)
    assert (server.reach.hbase, server.reach.directory) == (True, True)


async def test_a_directory_is_lost_once_it_was_reached_and_is_not_any_more() -> None:
    server = Server()
    server.read = lambda: None
    await server.look(10)
    assert not server.reach.has_lost_directory

    server.read = lambda: STORE_ID
    await server.look(2)
    assert not server.reach.has_lost_directory

    server.read = lambda: None
    await server.look(int(READ_COUNTS_S) + 1)
    assert server.reach.has_lost_directory


async def ends(server: Server, *others: ServerInfo | None, count: int = 1) -> bool:
    """Whether it ends within so many looks. None: what the others reach is not known."""
    found = None if None in others else [each for each in others if each is not None]
    for _ in range(count):
        await server.look()
        if server.reach.why_to_end(found, leads=True, count_max=COUNT_MAX) is not None:
            return True
    return False


async def test_a_server_ends_once_it_was_replaceable_for_long() -> None:
    server = Server()
    await server.look(2)
    assert not await ends(server, other(), count=100)

    server.reaches_hbase = False

    assert not await ends(server, other(), count=COUNT_MAX)
    assert await ends(server, other())


@pytest.mark.parametrize("others", [other(hbase=False), None])
async def test_the_count_begins_when_another_server_is_known_to_be_able(
    others: ServerInfo | None,
) -> None:
    server = Server()
    server.reaches_hbase = False

    assert not await ends(server, others, count=100)  # an outage of all servers
    assert not await ends(server, other(), count=COUNT_MAX)
    assert not await ends(server, others)
    assert not await ends(server, other(), count=COUNT_MAX)


async def test_an_interruption_begins_the_count_anew() -> None:
    server = Server()
    for _ in range(3):
        server.reaches_hbase = False
        assert not await ends(server, other(), count=COUNT_MAX)
        server.reaches_hbase = True
        assert not await ends(server, other())


async def test_a_pause_of_the_process_does_not_count() -> None:
    server = Server()
    server.reaches_hbase = False
    assert not await ends(server, other())

    server.now_s += 600.0

    assert not await ends(server, other(), count=COUNT_MAX - 1)


def raises() -> str | None:
    raise FileNotFoundError("there is no such directory")


@pytest.mark.parametrize("read", [raises, lambda: None, lambda: OTHER_STORE_ID])
async def test_a_directory_without_the_files_of_the_cluster_is_not_reached(
    read: Callable[[], str | None],
) -> None:
    server = Server()
    await server.look(2)

    server.read = read
    await server.look(round(READ_COUNTS_S) - 1)
    assert server.reach.directory  # a file may be removed between the listing and the read
    await server.look(5)
    assert not server.reach.directory

    server.read = lambda: STORE_ID
    await server.look(2)
    assert server.reach.directory


async def test_a_directory_that_hangs_is_not_reached_and_holds_one_thread() -> None:
    server, mended = Server(), Event()
    await server.look(2)

    def hang() -> str | None:
        mended.wait(30)
        return STORE_ID

    server.read, before = hang, server.read_count
    for _ in range(10):
        server.now_s += 1.0
        server.reach.look(STORE_ID)
        await asyncio.sleep(0)

    assert not server.reach.directory
    assert len(server.tasks) == 3
    mended.set()
    await asyncio.gather(*server.tasks)
    assert server.read_count == before + 1
    server.reach.look(STORE_ID)
    assert not server.reach.directory  # that answer is as old as its question
    await server.look(2)
    assert server.reach.directory
