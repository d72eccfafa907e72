"""The model of a power cut: what a disk may keep, must keep, and must not have."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults.powercut_disk import Call, Disk, TracedCall

ROOT = Path("/disk")
ENGINE = ROOT / "engine"
NEW = b"n" * 1500


class Tracer:
    """Makes a trace of calls by hand."""

    def __init__(self) -> None:
        self.disk = Disk(ROOT, engines=[ENGINE])

    def do(
        self,
        call: Call,
        name: str,
        rest: bytes = b"",
        *,
        inode: int = 0,
        at: int = 0,
        error: int = 0,
    ) -> "Tracer":
        self.disk.follow(TracedCall(call, error, inode, at, ROOT / name, rest, 0))
        return self

    def write(self, name: str, data: bytes, *, inode: int = 1, at: int = 0) -> "Tracer":
        return self.do(Call.WRITE, name, data, inode=inode, at=at)

    def sync(self, name: str, *, inode: int = 1, error: int = 0) -> "Tracer":
        return self.do(Call.SYNC, name, inode=inode, error=error)

    def durable(self, name: str, data: bytes) -> "Tracer":
        self.do(Call.CREATE, name, inode=1).write(name, data).sync(name)
        return self.do(Call.SYNC_DIRECTORY, "")

    def left(self) -> list[dict[str, Any]]:
        """Many of the trees that a power cut may leave."""
        chance = random.Random(1)
        return [self.disk.least(), *(self.disk.some(chance) for _ in range(300))]


def test_synced_bytes_are_always_there() -> None:
    traced = Tracer().durable("f", b"old")

    assert traced.left() == [{"f": b"old"}] * 301


def test_unsynced_bytes_survive_by_sectors_and_never_change() -> None:
    left = [tree["f"] for tree in Tracer().durable("f", b"old").write("f", NEW, at=3).left()]

    assert b"old" in left
    assert b"old" + NEW in left
    assert b"old" + NEW[:509] in left  # torn at the border of a sector
    assert b"old" + bytes(509) + NEW[509:] in left  # the first sector came too late
    for data in left:
        assert isinstance(data, bytes)
        assert set(data[3:]) <= {0, ord("n")}


@pytest.mark.parametrize("renames", [True, False])
def test_a_name_is_durable_only_with_its_directory(*, renames: bool) -> None:
    traced = Tracer().durable("f", b"old").do(Call.CREATE, "f.tmp", inode=2)
    traced.write("f.tmp", b"new", inode=2).sync("f.tmp", inode=2)
    if renames:
        traced.do(Call.RENAME, "f.tmp", b"/disk/f")
    expected = [{"f": b"old"}, {"f": b"old", "f.tmp": b"new"}]
    if renames:
        expected.append({"f": b"new"})

    left = traced.left()
    assert all(tree in left for tree in expected)
    assert all(tree in expected for tree in left)

    traced.do(Call.SYNC_DIRECTORY, "")
    assert traced.left() == [expected[-1]] * 301


def test_a_removed_file_may_come_back_until_its_directory_is_synced() -> None:
    traced = Tracer().durable("f", b"old").do(Call.UNLINK, "f")
    assert {"f": b"old"} in traced.left()
    assert {} in traced.left()

    traced.do(Call.SYNC_DIRECTORY, "")
    assert traced.left() == [{}] * 301


def test_no_later_sync_makes_up_for_a_failed_one() -> None:
    traced = Tracer().durable("f", b"old").write("f", b"lost", at=3)
    traced.sync("f", error=5).sync("f")

    left = [tree["f"] for tree in traced.left()]
    assert b"old" in left
    assert b"oldlost" in left

    traced.write("f", b"new", at=7).sync("f")
    assert all(tree["f"][7:] == b"new" for tree in traced.left())
    assert any(tree["f"][:7] == b"old\0\0\0\0" for tree in traced.left())


def _engine(traced: Tracer) -> Tracer:
    return traced.do(Call.MKDIR, "engine").do(Call.SYNC_DIRECTORY, "")


def test_names_in_an_engine_directory_change_in_order() -> None:
    traced = _engine(Tracer())
    for number in range(3):
        traced.do(Call.CREATE, f"engine/{number}", inode=number + 1)

    left = [sorted(tree["engine"]) for tree in traced.left()]

    assert {tuple(names) for names in left} == {(), ("0",), ("0", "1"), ("0", "1", "2")}


def test_the_sync_of_an_engine_file_also_syncs_the_name_changes_before_it() -> None:
    traced = _engine(Tracer())
    for number in range(3):
        traced.do(Call.CREATE, f"engine/{number}", inode=number + 1)
    traced.sync("engine/1", inode=2)

    left = [sorted(tree["engine"]) for tree in traced.left()]

    assert {tuple(names) for names in left} == {("0", "1"), ("0", "1", "2")}


def test_an_unsynced_truncation_leaves_the_old_or_the_truncated_file() -> None:
    traced = Tracer().durable("f", b"old").do(Call.TRUNCATE, "f", inode=1, at=1)

    assert {tree["f"] for tree in traced.left()} == {b"old", b"o"}


def test_a_new_length_may_be_there_without_its_data() -> None:
    left = {tree["f"] for tree in Tracer().durable("f", b"old").write("f", NEW, at=3).left()}

    assert b"old" + bytes(len(NEW)) in left
    assert b"old" + NEW[:509] + bytes(len(NEW) - 509) in left
    assert max(map(len, left)) == len(b"old" + NEW)


def _after_a_failed_sync() -> Tracer:
    traced = Tracer().durable("f", b"old").write("f", b"lost", at=3)
    return traced.sync("f", error=5)


def test_bytes_that_were_overwritten_after_a_failed_sync_do_not_come_back() -> None:
    traced = _after_a_failed_sync().write("f", b"NEWW", at=3).sync("f")

    assert {tree["f"] for tree in traced.left()} == {b"oldNEWW"}


def test_bytes_beside_an_overwritten_part_stay_doubtful() -> None:
    traced = _after_a_failed_sync().write("f", b"NE", at=4).sync("f")

    assert {tree["f"] for tree in traced.left()} == {
        b"oldlNE", b"oldlNE\0", b"oldlNEt", b"old\0NE", b"old\0NE\0", b"old\0NEt",
    }  # fmt: skip


@pytest.mark.parametrize(("length", "left"), [(3, {b"old"}), (2, {b"ol"})])
def test_bytes_that_were_truncated_after_a_failed_sync_do_not_come_back(
    length: int, left: set[bytes]
) -> None:
    traced = _after_a_failed_sync().do(Call.TRUNCATE, "f", inode=1, at=length).sync("f")

    assert {tree["f"] for tree in traced.left()} == left


def test_a_doubtful_truncation_removes_nothing_that_was_written_after_it() -> None:
    traced = Tracer().durable("f", b"old and more").do(Call.TRUNCATE, "f", inode=1, at=1)
    traced.sync("f", error=5).write("f", b"NEW", at=4).sync("f")

    found = {tree["f"] for tree in traced.left()}

    assert b"old NEW more" in found
    assert b"o\0\0\0NEW" in found
    assert all(data[4:7] == b"NEW" for data in found)
