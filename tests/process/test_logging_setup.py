"""Each change of health is one line with its cause; and the form of a log line."""

import asyncio
import io
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.requests_and_replies import Request
from process.clock import JUMP_MS_MIN
from process.components import Components
from process.health import Check, HealthLog, Status
from process.logging_setup import LineFormatter, log_to
from tests.process.manual_clock import NS_PER_MS, ManualClock
from tests.process.test_components import components_over
from tx.file_headers import FileKind, list_files

OK = Check(Status.OK, "well")


def line_of(**more: object) -> str:
    record = logging.LogRecord("room", logging.INFO, "", 1, 'it "is"', (), None)
    record.__dict__.update(more)
    return LineFormatter().format(record)


def test_a_log_line_consists_of_keys_and_values() -> None:
    line = line_of(fields={"plain": "a/b:1", "spaced": "a b", "number": 3, "empty": ""})

    assert line.startswith("time=")
    assert line.endswith(r'event="it \"is\"" plain=a/b:1 spaced="a b" number=3 empty=""')


def test_no_value_can_begin_a_log_line() -> None:
    assert "\n" not in line_of(fields={"broken": "a\nb"})


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What `HealthLog` logged, with its level."""
    caplog.set_level(logging.INFO)
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(f"{record.levelname} {record.getMessage()}")

    handler = Keep()
    logging.getLogger("process.health").addHandler(handler)
    yield found
    logging.getLogger("process.health").removeHandler(handler)


def test_each_change_of_a_check_is_one_line(events: list[str]) -> None:
    changes = HealthLog()

    changes.note({"disk": OK})
    changes.note({"disk": OK})
    assert events == []
    for mib in (200, 199, 198):
        changes.note({"disk": Check(Status.DEGRADED, f"{mib} MiB", "low")})
    changes.note({"disk": Check(Status.DEGRADED, "it hangs")})
    changes.note({"disk": Check(Status.DOWN, "it is gone")})
    changes.note({"disk": OK})
    changes.note({"disk": Check(Status.OK, "well, with other words")})

    assert events == [
        "WARNING health of disk changed from ok to degraded: 200 MiB",
        "WARNING health of disk is still degraded, for another reason: it hangs",
        "ERROR health of disk changed from degraded to down: it is gone",
        "INFO health of disk changed from down to ok: well",
    ]


def test_a_problem_at_the_start_is_logged_and_a_good_state_is_not(events: list[str]) -> None:
    HealthLog().note({"storage": OK, "clock": Check(Status.DEGRADED, "it is behind")})

    assert events == ["WARNING health of clock changed from ok to degraded: it is behind"]


async def test_a_stop_and_a_start_of_the_service_are_logged_at_once(
    tmp_path: Path, manual: ManualClock, events: list[str]
) -> None:
    async with components_over(tmp_path, manual) as components:
        assert events == []
        await components.transactions.stop_service()
        await components.transactions.start_service()

        stopped, started = events
        assert "transactions changed from ok to degraded: stopped: the transaction s" in stopped
        assert "transactions changed from degraded to ok" in started
        await components.drain()
    assert events == [stopped, started]  # and the stop of the server is none of these


async def test_corrupt_transaction_files_are_logged_with_the_name_of_the_file(
    tmp_path: Path, manual: ManualClock, events: list[str]
) -> None:
    async with components_over(tmp_path, manual):
        pass
    logs = [path for path, kind in list_files(tmp_path / "snapshots") if kind is FileKind.LOG]
    logs[-1].write_bytes(b"no log")

    async with components_over(tmp_path, manual) as components:
        await components.tick()
        [event] = events
        assert event.startswith("WARNING health of transactions changed from ok to degraded: down:")
        assert f"{logs[-1].name} is damaged at byte 0" in event
        assert "`tuff salvage`" in event


async def test_missing_transaction_files_are_logged(
    tmp_path: Path, manual: ManualClock, events: list[str]
) -> None:
    async with components_over(tmp_path, manual):
        pass
    shutil.rmtree(tmp_path / "snapshots")

    async with components_over(tmp_path, manual):
        [event] = events
        assert "holds no transaction files, though the message store beside it" in event


async def test_a_missing_message_store_is_logged_once(
    tmp_path: Path, manual: ManualClock, events: list[str]
) -> None:
    async with components_over(tmp_path, manual):
        pass
    shutil.rmtree(tmp_path / "messages")

    async with components_over(tmp_path, manual) as components:
        for _ in range(3):
            await components.tick()
        storage = [event for event in events if "health of storage" in event]
        assert len(storage) == 1
        assert storage[0].startswith("ERROR health of storage changed from ok to down:")


async def clock_of(components: Components) -> tuple[str, str]:
    routes = {route.operation.path: route for route in components._routes()}
    reply = await routes["/health/ready"].handler(Request({}, (), None, (), b""))
    check = json.loads(reply.body)["checks"]["clock"]
    return check["status"], check["detail"]


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, JUMP_MS_MIN])
async def test_a_step_of_the_wall_clock_is_logged(
    tmp_path: Path, manual: ManualClock, events: list[str], jump_ms: int
) -> None:
    async with components_over(tmp_path, manual) as components:
        assert (await clock_of(components))[0] == "ok"
        manual.wall_ns += jump_ms * NS_PER_MS
        await components.tick()
        await components.tick()

        status, detail = await clock_of(components)
        assert status == "degraded"
        assert ("ahead of" if jump_ms > 0 else "behind") in detail
        [event] = events
        assert "health of clock changed from ok to degraded: the wall clock was set" in event
        manual.wall_ns -= jump_ms * NS_PER_MS
        await components.tick()
        assert events[1].startswith("INFO health of clock changed from degraded to ok")


async def test_a_clock_that_is_a_little_off_is_no_jump(
    tmp_path: Path, manual: ManualClock, events: list[str]
) -> None:
    async with components_over(tmp_path, manual) as components:
        manual.wall_ns += (JUMP_MS_MIN - 1) * NS_PER_MS
        await components.tick()
    assert events == []


async def test_a_start_after_an_unclean_stop_is_logged(
    tmp_path: Path, manual: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with components_over(tmp_path / "one", manual) as components:
        await asyncio.to_thread(shutil.copytree, tmp_path / "one", tmp_path / "two")
        del components
    async with components_over(tmp_path / "one", manual):
        assert "shutdown was not clean" not in caplog.text
    async with components_over(tmp_path / "two", manual):
        [line] = re.findall(r".*shutdown was not clean.*", caplog.text)
        assert "0 transactions are still in progress" in line


def test_below_its_level_nothing_is_logged() -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        log_to(stream, level="warning")
        logging.getLogger("one").info("quiet")
        logging.getLogger("one").warning("loud")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert "loud" in stream.getvalue()
    assert "quiet" not in stream.getvalue()
