"""What `tuff hbase compact` waits for, and what it reports about region observers."""

import json
from pathlib import Path

import pytest

from admin.hbase_regions import Region
from admin.hbase_tables import RECORDED_WITHIN_S, STATE_READ_S, ObserversOfTables
from messaging.log.region_observers import RECORDS, STATE_NAME, RegionRecord, pack_state
from messaging.model.expiry import RetentionState

NOON_MS = 1_480_000_000_000
REGIONS = [
    Region("t_message", b"t_message,%d,1.%s." % (number, name), "localhost", 1)
    for number, name in enumerate((b"aa", b"bb"))
]


class ServerAndRegions:
    """Writes the files of the server and of two regions while the command sleeps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / RECORDS).mkdir()
        self.elapsed_s = 0.0
        self.due: dict[float, int] = {}  # by the time at which the server writes a state, its time
        self.observed = ObserversOfTables(
            directory, {"t_message"}, elapsed_s=lambda: self.elapsed_s, sleep=self.sleep
        )

    def sleep(self, pause_s: float) -> None:
        self.elapsed_s += pause_s
        for at_s in [each for each in self.due if each <= self.elapsed_s]:
            self.write_state(self.due.pop(at_s))

    def write_state(self, now_ms: int) -> None:
        state = RetentionState(now_ms=now_ms, longest_transaction_ms=0, in_progress=(), invalid=())
        data = pack_state({}, state)
        (self.directory / STATE_NAME).write_bytes(data)

    def record(self, region: Region, *, state_ms: int, ended_ms: int, dropped: int) -> None:
        record = RegionRecord(
            region=region.encoded_name,
            state_ms=state_ms,
            ended_ms=ended_ms,
            dropped_count=dropped,
            inverted_count=0,
            cleared=frozenset(),
        )
        path = self.directory / RECORDS / f"{region.encoded_name}.major"
        path.write_bytes(record.to_bytes())


@pytest.fixture
def world(tmp_path: Path) -> ServerAndRegions:
    return ServerAndRegions(tmp_path)


def test_it_waits_for_a_newer_state_and_until_regions_have_read_it(world: ServerAndRegions) -> None:
    world.write_state(NOON_MS)
    world.due[10.0] = NOON_MS + 1

    world.observed.await_state(within_s=60.0)

    assert world.elapsed_s == 10.0 + STATE_READ_S


def test_without_a_newer_state_it_uses_the_existing_one(
    world: ServerAndRegions, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write_state(NOON_MS)

    world.observed.await_state(within_s=60.0)

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1] == {
        "kind": "old state", "of": "2016-11-24T15:06:40.000+00:00", "advice": "start the server"
    }  # fmt: skip


def test_a_region_that_used_an_older_state_is_compacted_again(world: ServerAndRegions) -> None:
    world.write_state(NOON_MS)
    world.due[1.0] = NOON_MS + 1
    world.record(REGIONS[0], state_ms=NOON_MS + 1, ended_ms=1, dropped=50)  # of an earlier time
    world.observed.await_state(within_s=60.0)
    world.record(REGIONS[0], state_ms=NOON_MS + 1, ended_ms=2, dropped=5)
    world.record(REGIONS[1], state_ms=NOON_MS, ended_ms=2, dropped=0)

    behind = world.observed.behind(REGIONS)
    world.record(REGIONS[1], state_ms=NOON_MS + 1, ended_ms=3, dropped=7)
    again = world.observed.behind(behind)

    assert (behind, again) == ([REGIONS[1]], [])
    summary = world.observed.summary()
    assert summary["dropped"] == 12
    assert summary["regions that kept all for lack of a state"] == 0


def test_regions_without_a_record_are_waited_for_and_counted(world: ServerAndRegions) -> None:
    world.due[1.0] = NOON_MS
    world.observed.await_state(within_s=60.0)
    waited_s = world.elapsed_s
    world.record(REGIONS[0], state_ms=NOON_MS, ended_ms=2, dropped=5)

    assert world.observed.behind(REGIONS) == []

    assert world.elapsed_s == waited_s + RECORDED_WITHIN_S
    assert world.observed.summary()["regions that kept all for lack of a state"] == 1


def test_without_a_state_it_reports_that_nothing_was_removed(world: ServerAndRegions) -> None:
    world.observed.await_state(within_s=60.0)

    assert world.observed.behind(REGIONS) == []

    assert world.observed.summary() == {
        "kind": "removed",
        "dropped": 0,
        "inverted": 0,
        "by the state of": "none",
        "regions that kept all for lack of a state": 2,
    }
