"""The judgements of `tuff doctor`, and each problem made real on a machine."""

import os
import socket
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from admin import doctor
from admin.doctor import Diagnosis, Level
from process.disk_space import Space

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
NOW_MS = 1_800_000_000_000


def found(tmp_path: Path, *assignments: str, now_ms: int = NOW_MS) -> dict[str, Diagnosis]:
    """The findings for a data directory, by check."""
    steps = iter(range(1_000_000))
    return {
        each.check: each
        for each in doctor.findings(
            None, tmp_path, list(assignments), now_ms=now_ms, elapsed_s=lambda: next(steps) / 1000
        )
    }


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (doctor.python_version(("3", "11", "0")), Level.OK),
        (doctor.python_version(("3", "10", "9")), Level.PROBLEM),
        (doctor.library("orjson", "3.10.2", "3.10"), Level.OK),
        (doctor.library("orjson", "3.9.9", "3.10"), Level.PROBLEM),
        (doctor.library("orjson", None, "3.10"), Level.PROBLEM),
        (doctor.open_files(None, connections_max=20_000), Level.OK),
        (doctor.open_files(20_000, connections_max=20_000), Level.WARNING),
        (doctor.open_files(1_000, connections_max=20_000), Level.PROBLEM),
        (doctor.memory(GIB), Level.OK),
        (doctor.memory(300 << 20), Level.WARNING),
        (doctor.memory(100 << 20), Level.PROBLEM),
        (doctor.space("d", Space(GIB, 100 * GIB)), Level.OK),
        (doctor.space("d", Space(200 << 20, 100 * GIB)), Level.WARNING),
        (doctor.space("d", Space(1 << 20, 100 * GIB)), Level.PROBLEM),
        (doctor.inodes("d", free=0, total=0), Level.OK),
        (doctor.inodes("d", free=5_000, total=10_000), Level.WARNING),
        (doctor.inodes("d", free=5, total=10_000), Level.PROBLEM),
        (doctor.fsync("d", [0.001] * 10), Level.OK),
        (doctor.fsync("d", [0.001] * 8 + [0.06] * 2), Level.WARNING),
        (doctor.fsync("d", [0.6] * 10), Level.PROBLEM),
        (doctor.clock(is_synchronised=True, now_ms=10, newest_ms=None), Level.OK),
        (doctor.clock(is_synchronised=None, now_ms=10, newest_ms=10), Level.OK),
        (doctor.clock(is_synchronised=False, now_ms=10, newest_ms=10), Level.WARNING),
        (doctor.clock(is_synchronised=True, now_ms=10, newest_ms=5_000), Level.PROBLEM),
    ],
)
def test_a_measurement_is_judged(result: Diagnosis, level: Level) -> None:
    assert result.level is level
    assert bool(result.advice) == (level is not Level.OK)


def test_a_volatile_file_system_is_a_problem() -> None:
    ext4, tmpfs = doctor.file_system("d", "ext4"), doctor.file_system("d", "tmpfs")
    assert (ext4.level, tmpfs.level) == (Level.OK, Level.PROBLEM)


def test_a_directory_that_can_be_used_is_ok_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()

    here = found(tmp_path)

    for name in ("permissions", "space", "inodes", "fsync"):
        assert here[f"{name} {tmp_path / 'messages'}"].level is Level.OK
    assert "can be made" in here[f"permissions {tmp_path / 'snapshots'}"].detail
    assert list((tmp_path / "messages").iterdir()) == []


def test_a_right_that_lacks_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, tests can't take a right away from themselves."""
    messages = tmp_path / "messages"
    messages.mkdir()
    real = os.access

    def access(path: Path, mode: int) -> bool:
        return not (Path(path) == messages and mode & os.W_OK) and real(path, mode)

    monkeypatch.setattr(os, "access", access)

    refused = found(tmp_path)[f"permissions {messages}"]

    assert refused.level is Level.PROBLEM
    assert "may not write" in refused.detail
    assert "chown" in refused.advice


def test_a_damaged_transaction_file_and_a_clock_behind_the_files_are_problems(
    tmp_path: Path,
) -> None:
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()
    golden = bytes.fromhex((ROOT / "tests/golden/snapshot.hex").read_text("ascii"))
    (snapshots / "snapshot.5").write_bytes(golden)
    newest = found(tmp_path, now_ms=1)
    (snapshots / "snapshot.6").write_bytes(b"no snapshot")
    damaged = found(tmp_path)

    assert newest["clock"].level is Level.PROBLEM
    assert newest["formats"].level is Level.OK
    assert damaged["file snapshot.6"].level is Level.PROBLEM


def test_a_data_directory_that_no_server_has_used_is_a_warning(tmp_path: Path) -> None:
    never = found(tmp_path / "typo")[f"data {tmp_path / 'typo'}"]
    (tmp_path / "data" / "messages").mkdir(parents=True)
    (tmp_path / "data" / "messages" / "CURRENT").touch()
    (tmp_path / "snapshots").mkdir()
    golden = bytes.fromhex((ROOT / "tests/golden/snapshot.hex").read_text("ascii"))
    (tmp_path / "snapshots" / "snapshot.5").write_bytes(golden)
    used = found(tmp_path / "data")

    assert never.level is Level.WARNING
    assert "contains no data" in never.detail
    assert used[f"data {tmp_path / 'data'}"].level is Level.OK
    assert "1 transaction file can" in used["formats"].detail, "of a server without --data"


def test_settings_that_are_impossible_are_a_problem(tmp_path: Path) -> None:
    assert found(tmp_path)["settings"].level is Level.OK
    wrong = found(tmp_path, "server.prot=1")["settings"]
    assert wrong.level is Level.PROBLEM
    assert "server.prot" in wrong.detail


def test_an_access_file_that_every_user_may_write_is_named(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.touch(mode=0o640)
    check, setting = f"server.access_file {file}", f"server.access_file={file}"
    assert found(tmp_path, setting)[check].level is Level.OK
    file.chmod(0o646)

    assert found(tmp_path, setting)[check].level is Level.WARNING


def test_a_gateway_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        store = (
            "messaging.store=hbase",
            "server.max_request_bytes=1000000",
            f'hbase.gateways=["127.0.0.1:{port}"]',
        )
        check = f"the HBase gateway 127.0.0.1:{port}"
        assert found(tmp_path, *store)[check].level is Level.OK
    refused = found(tmp_path, *store)[check]

    assert refused.level is Level.PROBLEM
    assert "can't be reached" in refused.detail


SERVER = ("server", "aio", "cli", "tables")


def test_a_library_without_its_c_code_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuff_storage.leveldb.crc32c.google_crc32c.implementation", "python")

    named = found(tmp_path)["library google-crc32c without its C code"]

    assert named.level is Level.WARNING


def test_exactly_one_leveldb_is_installed_wherever_the_server_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tables = [Requirement(each) for each in project["optional-dependencies"]["tables"]]
    engines = [each for each in tables if each.name in doctor.ENGINES]
    places = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]

    for minor in range(11, 15):
        for system, machine in places:
            place = {"python_version": f"3.{minor}", "sys_platform": system}
            chosen = [
                each.name
                for each in engines
                if each.marker and each.marker.evaluate({**place, "platform_machine": machine})
            ]
            has_wheels = (minor, system, machine) in [(11, *places[0]), (12, *places[0])]
            expected = "plyvel" if has_wheels or minor == 11 else "plyvel-next"
            assert chosen == [expected], place


def test_the_libraries_are_those_that_the_package_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(each for name in SERVER for each in extras[name])]
    minimum = {
        each.name: str(next(one.version for one in each.specifier if one.operator == ">="))
        for each in map(Requirement, texts)
        if each.name != "tuff-messaging"
    }

    assert f"tuff-messaging[{','.join(SERVER[1:])}]" in extras["server"]
    assert (doctor.LIBRARIES | doctor.ENGINES).items() <= minimum.items()
    assert doctor.PYTHON_MIN == (3, 11)
    assert project["requires-python"] == ">=3.11"
    assert requires("tuff-messaging")


def test_a_missing_archive_is_a_warning(tmp_path: Path) -> None:
    assert doctor.archive(str(tmp_path)).level is Level.OK
    missing = doctor.archive(str(tmp_path / "a"))
    assert missing.level is Level.WARNING
    assert "reads that start before the log are refused" in missing.detail


def test_a_read_only_file_system_is_no_matter_of_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was a chown."""
    real = os.statvfs(tmp_path)
    values = [real.f_flag | os.ST_RDONLY if index == 8 else each for index, each in enumerate(real)]
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(values))

    found = next(doctor.of_directory(tmp_path, elapsed_s=lambda: 0.0))

    assert (found.level, found.detail) == (Level.PROBLEM, "its file system is read-only")
    assert "chown" not in found.advice
