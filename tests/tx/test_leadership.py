"""Several services on one directory, of which only the leader of the newest epoch counts."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.formats.replay import read_state
from tests.tx.service import NOW_MS, STORE_ID, Service
from tests.tx.steps import Election, Seat, SteppedDisk, Steps, stop_at_file_operations
from tuff.protocol.errors import TransactionsUnavailableError, TuffError
from tx.durable_state import ServiceState
from tx.file_headers import (
    EPOCH_MAX,
    FileHeader,
    FileKind,
    KnownFile,
    known_file,
    leftovers,
    list_files,
)
from tx.leadership import NotLeaderError, Tenure
from tx.mixed_backups import RecordedFiles
from tx.recovery import recover
from tx.settings import TransactionSettings
from tx.state import TransactionState

RETAIN_FEW = TransactionSettings(snapshot_retain=1, snapshot_interval_s=86_400)
RETAIN_MANY = TransactionSettings(snapshot_retain=10, snapshot_interval_s=86_400)
E = 1 << 32  # the distance of two epochs


class Servers:
    """Servers that share a directory. Each that is elected replaces the one before."""

    def __init__(self, directory: Path, steps: Steps) -> None:
        self.directory = directory
        self.steps = steps
        self.election = Election(steps)
        self.all: list[Service] = []

    def elect(self, settings: TransactionSettings = RETAIN_FEW) -> Service:
        """A server that leads from now on, and has not opened its files."""
        seat = self.election.elect()
        who = self.name(seat.epoch)
        service = Service(
            self.directory,
            settings,
            leadership=seat,
            disk=SteppedDisk(self.steps, who),
            files=SteppedDisk(self.steps, who),
        )
        self.all.append(service)
        return service

    @staticmethod
    def name(epoch: int) -> str:
        return f"server-{epoch}"

    def name_of(self, service: Service) -> str:
        assert service.leadership is not None
        return self.name(service.leadership.epoch)

    async def opened(self) -> Service:
        """The next leader, up."""
        service = self.elect()
        opening = asyncio.create_task(service.open())
        await self.steps.run(self.name_of(service))
        await opening
        assert service.manager.status.state is ServiceState.RUNNING, service.manager.status.reason
        return service

    async def done(self, service: Service, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call to a service of which nothing stops."""
        task = asyncio.create_task(work)
        await self.steps.run(self.name_of(service))
        return await task

    async def close(self) -> None:
        self.steps.release_all()
        for service in self.all:
            await service.kill()
        for pool in self.steps.pools:
            pool.shutdown()


@pytest.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    steps = Steps()
    stop_at_file_operations(steps, monkeypatch)
    servers = Servers(tmp_path / "tx", steps)
    yield servers
    await servers.close()


async def commit(service: Service) -> int:
    """The pointer of a transaction that committed."""
    opened = await service.begin()
    await service.runner.commit(opened.transaction_id, changes=[b"k"])
    return opened.transaction_id


def contents(state: TransactionState) -> dict[str, Any]:
    """What has to be the same in two recoveries of the same edits."""
    return {
        "ended": {outcome.transaction_id: outcome.state for outcome in state.image().outcomes},
        "open": sorted(state.open),
        "invalid": list(state.invalid),
        "reserved": state.highest_reserved,
    }


def found_state(directory: Path) -> TransactionState:
    recovered = recover(directory, None)
    assert recovered is not None
    return recovered.state


def corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")


def state_without_newest_snapshot(directory: Path, copy: Path) -> TransactionState:
    """The state of a copy whose newest snapshot is corrupt, if another one can replace it."""
    shutil.copytree(directory, copy)
    files = [known_file(path, kind) for path, kind in list_files(copy)]
    late = leftovers(files)
    usable = [known for known in files if known.kind is FileKind.SNAPSHOT and known not in late]
    if len(usable) > 1:
        corrupt(max(usable, key=lambda known: known.header.sequence).path)
    return found_state(copy)


def files_of(directory: Path) -> list[tuple[str, int, int]]:
    found = [known_file(path, kind) for path, kind in list_files(directory)]
    found.sort(key=lambda known: known.header.sequence)
    return [
        (known.kind.value, known.header.sequence // E, known.header.sequence % E) for known in found
    ]


# One stop of the leader that is replaced, at each operation of a commit and of a snapshot.

COMMIT = ["write", "sync", "check"]
SNAPSHOT = [
    "chose log name", "make log", "made log", "check", "checked", "chose snapshot name",
    "make snapshot", "made snapshot",
]  # fmt: skip


@pytest.mark.parametrize("point", COMMIT)
async def test_a_commit_of_a_replaced_leader_is_not_acknowledged(
    servers: Servers, point: str
) -> None:
    old = await servers.opened()
    before = await servers.done(old, commit(old))
    late = asyncio.create_task(commit(old))
    step = await servers.steps.run_to("server-1", point)
    new = await servers.opened()
    after = await servers.done(new, commit(new))

    servers.steps.release(step)
    await servers.steps.run("server-1")

    with pytest.raises(TransactionsUnavailableError):
        await late
    assert old.manager.status.state is ServiceState.DOWN
    assert old.manager.status.reason == "another server leads transactions: server-2"
    assert await new.state_of(before) == await new.state_of(after) == ("committed", None)
    expected = contents(new.durable.decided)
    third = await servers.opened()
    assert contents(third.durable.decided)["ended"] == expected["ended"]


async def test_what_was_checked_before_another_server_was_elected_is_acknowledged_and_kept(
    servers: Servers,
) -> None:
    old = await servers.opened()
    late = asyncio.create_task(commit(old))
    step = await servers.steps.run_to("server-1", "checked")
    new = await servers.opened()

    servers.steps.release(step)
    await servers.steps.run("server-1")

    assert await new.state_of(await late) == ("committed", None)


@pytest.mark.parametrize("point", SNAPSHOT)
async def test_a_snapshot_of_a_replaced_leader_changes_nothing(
    servers: Servers, point: str
) -> None:
    old = await servers.opened()
    before = [await servers.done(old, commit(old)) for _ in range(3)]
    late = asyncio.create_task(old.manager.take_snapshot())
    step = await servers.steps.run_to("server-1", point)
    new = await servers.opened()
    after = await servers.done(new, commit(new))

    servers.steps.release(step)
    await servers.steps.run("server-1")

    with pytest.raises(TransactionsUnavailableError, match="another server leads"):
        await late
    assert old.manager.status.reason == "another server leads transactions: server-2"
    # It goes no further than to its next check, which the new log needs too.
    is_snapshot_made = ("snapshot", 1, 3) in files_of(servers.directory)
    assert is_snapshot_made == (SNAPSHOT.index(point) >= SNAPSHOT.index("checked"))
    expected = contents(new.durable.decided)
    assert contents(found_state(servers.directory)) == expected
    third = await servers.opened()
    for pointer in (*before, after):
        assert await third.state_of(pointer) == ("committed", None)
    await servers.done(third, third.manager.take_snapshot())
    # It removed what the first leader left behind, and what is superfluous.
    assert {epoch for _, epoch, _ in files_of(servers.directory)} <= {1, 3}


@pytest.mark.parametrize("point", SNAPSHOT)
async def test_the_logs_stand_in_for_a_corrupt_snapshot_whatever_a_replaced_leader_left(
    servers: Servers, point: str
) -> None:
    old = servers.elect(RETAIN_MANY)
    await servers.done(old, old.open())
    before = await servers.done(old, commit(old))
    late = asyncio.create_task(old.manager.take_snapshot())
    step = await servers.steps.run_to("server-1", point)
    new = servers.elect(RETAIN_MANY)
    await servers.done(new, new.open())
    after = await servers.done(new, commit(new))
    servers.steps.release(step)
    await servers.steps.run("server-1")
    await asyncio.gather(late, return_exceptions=True)
    expected = contents(new.durable.decided)

    snapshots = [
        path
        for path, kind in list_files(servers.directory)
        if kind is FileKind.SNAPSHOT and known_file(path, kind).header.epoch == 2
    ]
    for path in snapshots:
        corrupt(path)

    state = found_state(servers.directory)
    assert contents(state) == expected
    assert {before, after} <= {outcome.transaction_id for outcome in state.image().outcomes}


async def test_a_replaced_leader_removes_no_file(servers: Servers) -> None:
    old = await servers.opened()
    await servers.done(old, commit(old))
    late = asyncio.create_task(old.manager.take_snapshot())
    step = await servers.steps.run_to("server-1", "made snapshot")
    servers.steps.release(step)
    first = await servers.steps.run_to("server-1", "checked")  # after the snapshot
    servers.steps.release(first)
    removal = await servers.steps.run_to("server-1", "check")
    before = files_of(servers.directory)
    new = servers.elect()

    servers.steps.release(removal)
    await servers.steps.run("server-1")

    with pytest.raises(TransactionsUnavailableError, match="another server leads"):
        await late
    assert files_of(servers.directory) == before
    await servers.done(new, new.open())
    assert new.manager.status.state is ServiceState.RUNNING


async def test_a_log_that_a_new_leader_may_have_read_is_not_taken_back(servers: Servers) -> None:
    """The new leader continues behind it. Without it, its own log has no predecessor."""
    old = await servers.opened()
    before = await servers.done(old, commit(old))
    late = asyncio.create_task(old.manager.take_snapshot())
    await servers.steps.run_to("server-1", "made log")
    new = servers.elect()
    opening = asyncio.create_task(new.open())
    step = await servers.steps.run_to("server-2", "make snapshot")

    await servers.steps.run("server-1")

    await asyncio.gather(late, return_exceptions=True)
    third = await servers.opened()
    assert await third.state_of(before) == ("committed", None)
    servers.steps.release(step)
    await servers.steps.run("server-2")
    await opening
    assert new.manager.status.reason == "another server leads transactions: server-3"


async def test_a_leader_that_lost_its_place_recovers_nothing_any_more(servers: Servers) -> None:
    old = await servers.opened()
    new = await servers.opened()
    with pytest.raises(TransactionsUnavailableError):
        await servers.done(old, commit(old))
    before = files_of(servers.directory)

    old.now_ms += 60_000
    await servers.done(old, old.manager.tick())
    with pytest.raises(TransactionsUnavailableError, match="another server leads"):
        await servers.done(old, old.manager.start_service())
    for call in (old.begin, old.manager.take_snapshot, lambda: old.state_of(1)):
        with pytest.raises(TransactionsUnavailableError, match="another server leads"):
            await servers.done(old, call())
    assert (await old.write_permits.visibility_state()) is None
    await servers.done(old, old.manager.close())

    assert old.durable.lost_leadership == "another server leads transactions: server-2"
    assert files_of(servers.directory) == before
    assert new.durable.lost_leadership is None


async def test_a_leader_whose_leadership_can_not_be_checked_recovers_once_it_can(
    servers: Servers,
) -> None:
    service = await servers.opened()
    before = await servers.done(service, commit(service))
    servers.election.is_reachable = False
    with pytest.raises(TransactionsUnavailableError, match="Connection timed out"):
        await servers.done(service, commit(service))
    assert service.manager.status.state is ServiceState.DOWN

    servers.election.is_reachable = True
    service.now_ms += 1_000
    await servers.done(service, service.manager.tick())

    assert service.manager.status.state is ServiceState.RUNNING
    assert await service.state_of(before) == ("committed", None)
    await servers.done(service, commit(service))


async def test_a_leader_recovers_within_a_second_of_the_first_answer_however_long_there_was_none(
    servers: Servers,
) -> None:
    service = await servers.opened()
    servers.election.is_reachable = False
    with pytest.raises(TransactionsUnavailableError, match="Connection timed out"):
        await servers.done(service, commit(service))
    before = files_of(servers.directory)
    for _ in range(10):
        service.now_ms += 60_000
        await servers.done(service, service.manager.tick())
    assert service.manager.status.state is ServiceState.DOWN
    assert files_of(servers.directory) == before

    servers.election.is_reachable = True
    service.now_ms += 1_000
    await servers.done(service, service.manager.tick())

    assert service.manager.status.state is ServiceState.RUNNING


async def test_a_new_log_that_may_not_be_the_leaders_is_not_continued_before_a_recovery(
    servers: Servers,
) -> None:
    service = await servers.opened()
    before = await servers.done(service, commit(service))
    servers.election.is_reachable = False
    with pytest.raises(TransactionsUnavailableError, match="Connection timed out"):
        await servers.done(service, service.manager.take_snapshot())
    assert service.manager.status.state is ServiceState.DOWN
    assert files_of(servers.directory)[-1] == ("txlog", 1, 2)

    servers.election.is_reachable = True
    service.now_ms += 1_000
    await servers.done(service, service.manager.tick())
    after = await servers.done(service, commit(service))

    new = await servers.opened()
    assert await new.state_of(before) == await new.state_of(after) == ("committed", None)


async def test_a_snapshot_whose_leadership_can_not_be_checked_is_not_acknowledged(
    servers: Servers,
) -> None:
    service = await servers.opened()
    late = asyncio.create_task(service.manager.take_snapshot())
    step = await servers.steps.run_to("server-1", "made snapshot")
    servers.election.is_reachable = False
    servers.steps.release(step)
    await servers.steps.run("server-1")
    servers.election.is_reachable = True

    with pytest.raises(TransactionsUnavailableError, match="Connection timed out"):
        await late
    pointer = await servers.done(service, commit(service))
    new = await servers.opened()
    assert await new.state_of(pointer) == ("committed", None)


async def test_a_server_that_was_replaced_before_it_opened_makes_no_file(servers: Servers) -> None:
    late = servers.elect()
    leader = await servers.opened()
    before = files_of(servers.directory)

    await servers.done(late, late.open())

    assert late.manager.status.state is ServiceState.DOWN
    assert late.manager.status.reason == "another server leads transactions: server-2"
    assert files_of(servers.directory) == before
    await servers.done(leader, commit(leader))


async def test_a_server_that_does_not_lead_makes_no_file_even_if_the_leader_made_none(
    servers: Servers,
) -> None:
    late = servers.elect()
    servers.elect()

    await servers.done(late, late.open())

    assert late.manager.status.reason == "another server leads transactions: server-2"
    assert not servers.directory.exists()


@pytest.mark.parametrize(
    "point",
    [
        "check", "checked", "list", "listed", "chose snapshot name", "make snapshot",
        "made snapshot", "chose log name", "make log", "made log",
    ],
)  # fmt: skip
async def test_of_two_servers_that_make_the_first_files_the_newer_leader_counts(
    servers: Servers, point: str
) -> None:
    old = servers.elect()
    opening = asyncio.create_task(old.open())
    step = await servers.steps.run_to("server-1", point)
    new = await servers.opened()
    pointer = await servers.done(new, commit(new))
    servers.steps.release(step)
    await servers.steps.run("server-1")
    await opening

    assert old.manager.status.state is ServiceState.DOWN
    assert old.manager.status.reason == "another server leads transactions: server-2"
    assert contents(found_state(servers.directory)) == contents(new.durable.decided)
    third = await servers.opened()
    assert await third.state_of(pointer) == ("committed", None)


async def test_a_server_that_does_not_lead_yet_is_down_and_says_who_does(servers: Servers) -> None:
    waiting = Service(servers.directory)
    reason = "another server leads transactions: http://10.0.0.2:8080"

    waiting.manager.put_off(reason)

    assert waiting.manager.status.reason == reason
    with pytest.raises(TransactionsUnavailableError, match=reason):
        await waiting.begin()
    with pytest.raises(TransactionsUnavailableError, match=reason):
        await waiting.manager.start_service()
    assert not servers.directory.exists()


# Numbers and names of files


async def test_the_files_of_a_leader_have_its_epoch_in_numbers_and_names(servers: Servers) -> None:
    first = await servers.opened()
    await servers.done(first, first.manager.take_snapshot())
    await servers.opened()

    assert files_of(servers.directory) == [
        ("txlog", 1, 2), ("snapshot", 1, 3), ("txlog", 2, 0), ("snapshot", 2, 1),
    ]  # fmt: skip
    assert sorted(path.name for path, _ in list_files(servers.directory)) == [
        f"snapshot.{NOW_MS}.2", f"snapshot.{NOW_MS + 1}.1",
        f"txlog.{NOW_MS}.2", f"txlog.{NOW_MS + 1}.1",
    ]  # fmt: skip


async def test_a_leader_continues_the_files_of_a_server_that_was_alone(servers: Servers) -> None:
    alone = await Service(servers.directory).open()
    pointer = await commit(alone)
    await alone.manager.close()
    await alone.kill()
    assert sorted(files_of(servers.directory))[0] == ("snapshot", 0, 1)

    leader = await servers.opened()

    assert await leader.state_of(pointer) == ("committed", None)
    await servers.done(leader, leader.manager.close())
    again = await Service(servers.directory).open()
    assert again.manager.status.state is ServiceState.RUNNING
    assert await again.state_of(pointer) == ("committed", None)
    await again.kill()


async def test_a_leader_begins_behind_the_empty_snapshot_of_a_server_without_transactions(
    servers: Servers,
) -> None:
    unused = Service(servers.directory, TransactionSettings(enabled=False))
    await unused.open(RecordedFiles(STORE_ID))

    leader = await servers.opened()

    pointer = await servers.done(leader, commit(leader))
    assert files_of(servers.directory) == [("snapshot", 0, 1), ("snapshot", 1, 0), ("txlog", 1, 1)]
    third = await servers.opened()
    assert await third.state_of(pointer) == ("committed", None)


async def test_files_of_a_later_epoch_than_that_of_the_leader_are_refused(
    servers: Servers,
) -> None:
    """A metadata store that was replaced counts from 1 again. Continued, the files would be out of
    order."""
    await servers.opened()
    await servers.opened()
    servers.election.epoch = 0

    service = servers.elect()
    await servers.done(service, service.open())

    assert service.manager.status.state is ServiceState.DOWN
    assert service.manager.status.reason == (
        "there are transaction files of epoch 2, and this server leads in epoch 1: the metadata "
        "store was replaced, or belongs to other servers; use the right one, or raise its epoch "
        "above that of the files"
    )


@pytest.mark.parametrize("epoch", [0, -1, EPOCH_MAX + 1])
def test_an_epoch_that_no_file_can_have_is_refused(epoch: int) -> None:
    with pytest.raises(ValueError, match="an epoch is 1 to 2147483647"):
        Tenure(Seat(Election(Steps()), epoch))


def test_a_leadership_that_was_lost_once_is_never_found_again() -> None:
    election = Election(Steps())
    tenure = Tenure(election.elect())
    election.epoch = 2
    with pytest.raises(NotLeaderError):
        tenure.require()
    election.epoch = 1

    with pytest.raises(NotLeaderError, match="server-2"):
        tenure.require()


# Which files are leftovers


def _log(sequence: int, previous: int) -> KnownFile:
    return _known(FileKind.LOG, sequence, previous)


def _snapshot(sequence: int) -> KnownFile:
    return _known(FileKind.SNAPSHOT, sequence, 0)


def _known(kind: FileKind, sequence: int, previous: int) -> KnownFile:
    header = FileHeader(
        sequence=sequence, store_id=STORE_ID, created_ms=NOW_MS, lsn=1, previous_sequence=previous
    )
    return KnownFile(Path(f"{kind.value}.{sequence}"), kind, header)


LEFTOVERS = [
    pytest.param(
        [_snapshot(1), _log(2, 0), _log(3, 2), _snapshot(4), _log(9, 3), _snapshot(10)],
        [],
        id="a server alone has none",
    ),
    pytest.param(
        [_log(2, 0), _log(5, 2), _snapshot(6), _log(E, 5), _log(E + 2, E), _snapshot(E + 3)],
        [],
        id="nothing was late",
    ),
    pytest.param(
        [_log(2, 0), _log(5, 2), _snapshot(6), _log(7, 5), _snapshot(8), _log(E, 5)],
        [7, 8],
        id="a log, and its snapshot",
    ),
    pytest.param(
        [_snapshot(1), _log(2, 0), _log(3, 2), _snapshot(4), _log(E, 2)],
        [3, 4],
        id="the number behind the first log is that of a log",
    ),
    pytest.param(
        [_log(5, 4), _log(E, 5), _snapshot(E + 1), _log(2 * E, 5), _log(3 * E, E)],
        [2 * E],
        id="the first log of a leader that was late says nothing",
    ),
    pytest.param(
        [_snapshot(E), _log(E + 1, 0), _snapshot(2 * E), _log(2 * E + 1, 0)],
        [E, E + 1],
        id="the first files of all, twice",
    ),
    pytest.param(
        [_snapshot(E), _log(E + 1, 0), _snapshot(2 * E)],
        [E, E + 1],
        id="the first files of all, and a leader that had no log yet",
    ),
    pytest.param(
        [_log(E + 1, 0), _snapshot(2 * E), _log(3 * E, E + 1)],
        [2 * E],
        id="the first snapshot of a leader that was late",
    ),
    pytest.param(
        [_log(E, 3), _log(E + 2, E), _log(E + 4, E), _snapshot(E + 5)],
        [],
        id="a missing log within an epoch is damage, and hides nothing",
    ),
]


@pytest.mark.parametrize(("files", "expected"), LEFTOVERS)
def test_leftovers_are_what_a_new_leader_did_not_find(
    files: list[KnownFile], expected: list[int]
) -> None:
    late = leftovers(files)

    assert sorted(known.header.sequence for known in late) == expected


# Random orders of everything


class RandomLeaders:
    """Servers that are elected at any time, and go on one file operation at a time."""

    def __init__(self, servers: Servers, seed: int) -> None:
        self.servers = servers
        self.random = Random(seed)
        self.settings = RETAIN_FEW if seed % 2 else RETAIN_MANY
        self.acknowledged: dict[int, str] = {}
        self.started: list[int] = []
        self.paused: dict[str, int] = {}  # servers that stand still, and for how many turns
        self.tasks: list[asyncio.Task[None]] = []

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def end_one(self, service: Service, how: str) -> None:
        try:
            opened = await service.begin()
            self.started.append(opened.transaction_id)
            if how == "committed":
                await service.runner.commit(opened.transaction_id, changes=[b"k"])
            elif how == "aborted":
                await service.runner.abort(opened.transaction_id)
            else:
                return
        except TuffError:
            return
        self.acknowledged[opened.transaction_id] = how

    async def snapshot(self, service: Service) -> None:
        try:
            await service.manager.take_snapshot()
        except TransactionsUnavailableError:
            return

    async def tick(self, service: Service) -> None:
        service.now_ms += 1_000
        await service.manager.tick()

    async def open(self, service: Service) -> None:
        await service.open()

    def elect(self) -> Service:
        # A server is replaced because it stands still, and continues when the next one is opening,
        # is up, or was replaced too.
        if self.servers.all:
            replaced = self.servers.name_of(self.servers.all[-1])
            self.paused[replaced] = self.random.choice([0, 20, 60])
        service = self.servers.elect(self.settings)
        self.call(self.open(service))
        return service

    async def act(self) -> None:
        services, steps = self.servers.all, self.servers.steps
        self.paused = {who: count - 1 for who, count in self.paused.items() if count > 0}
        able = [step for step in steps.waiting if step.who not in self.paused]
        # Mostly a leader that is up, in the middle of something, is replaced.
        is_up = services[-1].manager.status.state is ServiceState.RUNNING
        choice = self.random.random()
        if choice < (0.04 if is_up and able else 0.004):
            self.elect()
        elif able and choice < 0.75:
            steps.release(self.random.choice(able))
        else:
            # Mostly of the newest two: a leader, and the one that it replaced.
            service = self.random.choice(services[-2:])
            kind = self.random.choice(["committed", "committed", "aborted", "open", "snapshot", ""])
            if kind == "snapshot":
                self.call(self.snapshot(service))
            elif kind:
                self.call(self.end_one(service, kind))
            else:
                self.call(self.tick(service))
        await steps.settle()


@pytest.mark.parametrize("seed", range(24))
async def test_in_any_order_of_file_operations_the_last_leader_has_what_any_acknowledged(
    servers: Servers, seed: int, tmp_path: Path
) -> None:
    run = RandomLeaders(servers, seed)
    run.elect()
    for _ in range(300):
        await run.act()
    last = run.elect()
    while servers.steps.waiting:
        servers.steps.release(run.random.choice(servers.steps.waiting))
        await servers.steps.settle()
    servers.steps.release_all()
    # The leader before may have removed a superfluous file while this one read the directory.
    run.call(run.tick(last))
    ended, pending = await asyncio.wait(run.tasks, timeout=5)
    assert [task.get_stack() for task in pending] == []
    assert [error for task in ended if (error := task.exception()) is not None] == []

    require_all_is_there(run, last.durable.decided)
    for service in servers.all[:-1]:
        # Nothing that another server does makes the files look damaged.
        assert re.fullmatch(
            r"(another server leads transactions: server-\d+)?", service.manager.status.reason
        )
    expected = contents(last.durable.decided)
    assert contents(found_state(servers.directory)) == expected
    by_the_page = read_state(servers.directory)
    assert {p: how for p, (how, _) in by_the_page.ended.items()} == {
        p: how.value for p, how in expected["ended"].items()
    }
    assert (sorted(by_the_page.open), sorted(by_the_page.invalid)) == (
        expected["open"], expected["invalid"],
    )  # fmt: skip
    require_all_is_there(run, state_without_newest_snapshot(servers.directory, tmp_path / "copy"))
    after = await servers.opened()
    require_all_is_there(run, after.durable.decided)


def require_all_is_there(run: RandomLeaders, state: TransactionState) -> None:
    ended = {outcome.transaction_id: outcome.state.value for outcome in state.image().outcomes}
    missing = {p: how for p, how in run.acknowledged.items() if ended.get(p) != how}
    assert missing == {}
    assert len(run.started) == len(set(run.started))
