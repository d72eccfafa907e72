"""When a disk is too full, and what the health says of one that does not answer (protocol §7)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from process.disk_space import Disk, DiskMonitor, Space
from process.health import Check, Status

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("size_bytes", "reserve_bytes", "warning_bytes"),
    [
        (100 * GIB, 64 * MIB, 256 * MIB),
        (GIB, 64 * MIB, 256 * MIB),
        (512 * MIB, 64 * MIB, 176 * MIB),
        (128 * MIB, 64 * MIB, 80 * MIB),
        (96 * MIB, 48 * MIB, 60 * MIB),
        (16 * MIB, 8 * MIB, 10 * MIB),
        (0, 0, 0),  # of a file system that does not say
    ],
)
def test_the_reserve_of_a_small_disk_depends_on_its_size(
    size_bytes: int, reserve_bytes: int, warning_bytes: int
) -> None:
    space = Space(free_bytes=size_bytes, size_bytes=size_bytes)

    assert (space.reserve_bytes, space.warning_bytes) == (reserve_bytes, warning_bytes)


class Asked:
    """A thread that answers when the test does, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.questions: list[asyncio.Future[Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def in_thread(self, _function: Callable[[], Any]) -> "asyncio.Future[Any]":
        self.questions.append(asyncio.get_running_loop().create_future())
        return self.questions[-1]

    def disks(self, messages: Path | None = Path("/data/messages")) -> DiskMonitor:
        return DiskMonitor(
            messages,
            Path("/data/snapshots"),
            threads=lambda _name: self.in_thread,
            elapsed_s=lambda: self.now_s,
            spawn=lambda work: self.tasks.append(asyncio.ensure_future(work)),
        )

    async def ask(self, disks: DiskMonitor) -> None:
        disks.query()
        await asyncio.sleep(0)

    async def answer(self, question: int, free_mib: int) -> None:
        self.questions[question].set_result(Space(free_mib * MIB, GIB))
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_disk_gets_one_query_at_a_time() -> None:
    asked = Asked()
    disks = asked.disks()

    await asked.ask(disks)
    await asked.ask(disks)
    assert len(asked.questions) == 2  # one of each

    await asked.answer(0, free_mib=500)
    await asked.ask(disks)
    assert len(asked.questions) == 3


async def test_the_last_answer_counts_while_a_disk_hangs() -> None:
    asked = Asked()
    disks = asked.disks()
    messages: Disk = disks.by_store["messages"]
    await asked.ask(disks)
    await asked.answer(0, free_mib=20)
    await asked.answer(1, free_mib=500)
    lack = (
        "only 20 MiB are free at /data/messages; no messages are taken; delete topics, truncate "
        "them or shorten their time to live, or enlarge the disk"
    )
    full = Check(Status.DOWN, lack, "full /data/messages")
    assert (disks.for_messages().lack(), disks.check()) == (lack, full)

    await asked.ask(disks)
    asked.now_s += 4.9
    assert disks.check() == full
    asked.now_s += 0.1

    assert disks.check() == Check(
        Status.DOWN,
        f"the disk at /data/messages has not answered for 5 s; before that, {lack}",
        "hangs /data/messages",
    )
    assert (disks.for_messages().lack(), messages.unanswered_s) == (lack, pytest.approx(5.0))


async def test_a_disk_that_hangs_degrades_and_takes_messages() -> None:
    asked = Asked()
    disks = asked.disks()
    await asked.ask(disks)
    await asked.answer(0, free_mib=500)
    asked.now_s += 7.0

    check = disks.check()

    assert check.status is Status.DEGRADED
    assert check.detail.startswith("the disk at /data/snapshots has not answered for 7 s; before")
    assert disks.for_messages().lack() is None


async def test_a_query_that_fails_does_not_count_as_a_full_disk() -> None:
    asked = Asked()
    disks = asked.disks()
    await asked.ask(disks)
    asked.questions[0].set_exception(OSError(5, "Input/output error"))
    await asked.answer(1, free_mib=500)

    check = disks.check()

    unknown = "the free space of /data/messages is unknown: Input/output error"
    assert check == Check(Status.DEGRADED, unknown)
    assert disks.for_messages().lack() is None


async def test_a_message_store_on_other_machines_has_no_disk_here() -> None:
    asked = Asked()
    disks = asked.disks(messages=None)

    await asked.ask(disks)
    await asked.answer(0, free_mib=1)

    assert list(disks.by_store) == ["transactions"]
    assert (disks.for_messages().lack(), disks.check().status) == (None, Status.DEGRADED)


async def test_the_free_space_of_a_missing_directory_is_that_of_its_parent(
    tmp_path: Path,
) -> None:
    def at_once(function: Callable[[], Any]) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        future.set_result(function())
        return future

    disks = DiskMonitor(
        tmp_path / "messages",
        tmp_path,
        threads=lambda _name: at_once,
        elapsed_s=lambda: 0.0,
        spawn=asyncio.ensure_future,
    )

    await disks.query_first()

    sizes = [disk.space and disk.space.size_bytes for disk in disks.by_store.values()]
    assert sizes[0] == sizes[1] is not None
