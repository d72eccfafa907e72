"""`tuff doctor` on the machine of a server: measures it, and judges what it measured.

It needs no stopped server. It writes one file of 4 KiB into each data directory, and removes it.
"""

import ctypes
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path

from admin.data_directory import DataDirectory
from admin.findings import RefusedError
from process.directory_locks import DataDirectories, DirectoryNameError
from process.disk_space import Space
from process.protected_files import protected_files
from process.settings import Settings, SettingsError, changed, load
from tuff.protocol.sentences import counted
from tuff_storage.disk.file_modes import rights_within
from tuff_storage.leveldb import crc32c
from tuff_storage.leveldb.engine import plyvel
from tx.file_headers import DamagedFilesError, known_file, list_files

FSYNC_WARNING_S = 0.05  # of the slowest tenth; each acknowledgement waits at least as long
FSYNC_PROBLEM_S = 0.5  # a commit would take a second
INODES_WARNING = 10_000  # files; LevelDB has one for some MiB
INODES_PROBLEM = 1_000
MEMORY_WARNING_BYTES = 512 << 20  # available; caches and write buffers take about half of it
MEMORY_PROBLEM_BYTES = 128 << 20
BEHIND_FILES_MS_MAX = 1_000  # ms; a clock so far behind its own files was set back
PYTHON_MIN = (3, 11)
VOLATILE = frozenset({"tmpfs", "ramfs"})  # file systems whose content ends with the machine's run
SYNC_COUNT = 50  # syncs of one measurement; less than a second on a slow disk
SYNC_BYTES = 4096
SPARE_DESCRIPTORS = 1_000  # files besides connections, as of the server
CONNECT_S_MAX = 2.0
LIBRARIES = {
    "orjson": "3.10", "google-crc32c": "1.7", "msgpack": "1.1", "uvloop": "0.21",
    "httptools": "0.6.4", "prometheus-client": "0.21", "aiohttp": "3.11", "zlib-ng": "1.0",
}  # fmt: skip
ENGINES = {"plyvel": "1.5.1", "plyvel-next": "2.1.2"}  # LevelDB: one of them
_TIME_ERROR = 5  # of adjtimex: the clock is not synchronised
_TIMEX_BYTES = 512  # more than its structure has on any machine
_MIB = 1 << 20


class Level(Enum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: what was checked, how serious it is, a sentence, and what to do; no advice if it
    is ok."""

    check: str
    level: Level
    detail: str
    advice: str = ""


def _judged(check: str, detail: str, advice: str, *, warns: bool, is_problem: bool) -> Diagnosis:
    """A finding, with its advice unless it is ok."""
    if not (warns or is_problem):
        return Diagnosis(check, Level.OK, detail)
    return Diagnosis(check, Level.PROBLEM if is_problem else Level.WARNING, detail, advice)


def findings(
    config: Path | None,
    data: Path | None,
    assignments: list[str],
    *,
    now_ms: int,
    elapsed_s: Callable[[], float],
) -> Iterator[Diagnosis]:
    """All findings about a machine, and the settings and the directories of a server there."""
    yield python_version(platform.python_version_tuple())
    engine = plyvel.__name__.replace("_", "-")
    for name, minimum in {engine: ENGINES[engine], **LIBRARIES}.items():
        yield library(name, _installed(name), minimum)
    if not crc32c.is_fast():
        yield _slow_checksums()
    try:
        settings = load(config, assignments)
        directories = _directories(settings, data)
    except (SettingsError, DirectoryNameError) as error:
        yield Diagnosis("settings", Level.PROBLEM, str(error), "correct the settings file")
        return
    detail = f"the settings are possible; {len(changed(settings))} not at the default"
    yield Diagnosis("settings", Level.OK, detail)
    yield from _of_server(settings, directories, now_ms=now_ms, elapsed_s=elapsed_s)


def _of_server(
    settings: Settings,
    directories: DataDirectory,
    *,
    now_ms: int,
    elapsed_s: Callable[[], float],
) -> Iterator[Diagnosis]:
    for setting, file, rights in protected_files(settings):
        yield _mode(f"{setting} {file}", rights, command="chmod o-rw")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(
        None if hard == resource.RLIM_INFINITY else hard,
        connections_max=settings.server.max_connections,
    )
    yield from _memory()
    yield _stores(settings, directories)
    written = [directories.snapshots]
    if settings.messaging.store == "leveldb":
        written.append(directories.messages)
    for directory in written:
        yield from of_directory(directory, elapsed_s=elapsed_s)
        rights = rights_within(directory)
        yield _mode(f"data in {directory}", rights, command=f"chmod o-rwx {directory}")
    if settings.messaging.archive_directory:
        yield archive(settings.messaging.archive_directory)
    newest_ms, formats = _transaction_files(directories.snapshots)
    yield clock(is_synchronised=_is_synchronised(), now_ms=now_ms, newest_ms=newest_ms)
    yield from formats
    for what, address in _needed_servers(settings):
        yield _reachable(what, address)


def python_version(found: tuple[str, ...]) -> Diagnosis:
    """Whether this Python is supported."""
    text, needed = ".".join(found[:2]), ".".join(map(str, PYTHON_MIN))
    if (int(found[0]), int(found[1])) >= PYTHON_MIN:
        return Diagnosis("python", Level.OK, f"Python {text} is supported")
    detail, advice = f"Python {text} is older than {needed}", f"install Python {needed} or later"
    return Diagnosis("python", Level.PROBLEM, detail, advice)


def library(name: str, found: str | None, minimum: str) -> Diagnosis:
    """Whether a library that the server needs is installed, in a version that it supports."""
    advice = "pip install --upgrade 'tuff-messaging[server]'"
    check = f"library {name}"
    if found is None:
        return Diagnosis(check, Level.PROBLEM, f"{name} is not installed", advice)
    if _numbers(found) < _numbers(minimum):
        detail = f"{name} {found} is older than {minimum}"
        return Diagnosis(check, Level.PROBLEM, detail, advice)
    return Diagnosis(check, Level.OK, f"{name} {found}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    """The leading numbers of a version."""
    return [int(part) for part in takewhile(str.isdigit, version.split("."))]


def _slow_checksums() -> Diagnosis:
    """The CRC-32C library was installed without its C code."""
    return Diagnosis(
        "library google-crc32c without its C code",
        Level.WARNING,
        "google-crc32c runs without its C code: fsck, salvage and reads beside corruption take "
        "hundreds of times as long",
        "install its wheel, or a C compiler and the library crc32c, and then google-crc32c again",
    )


def open_files(limit: int | None, *, connections_max: int) -> Diagnosis:
    """Whether the process may open as many files as its connections and stores need. `limit` is the
    hard limit, to which a server raises its own; None: there is none."""
    wanted = connections_max + SPARE_DESCRIPTORS
    if limit is None or limit >= wanted:
        shown = "unlimited" if limit is None else str(limit)
        return Diagnosis("open files", Level.OK, f"the limit is {shown}, and {wanted} are needed")
    detail = f"at most {limit} files may be open; {connections_max} connections need {wanted}"
    advice = f"raise the limit (LimitNOFILE={wanted} of systemd), or lower server.max_connections"
    return _judged("open files", detail, advice, warns=True, is_problem=limit <= SPARE_DESCRIPTORS)


def _memory() -> Iterator[Diagnosis]:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield memory(int(rest.split()[0]) * 1024)


def memory(available_bytes: int) -> Diagnosis:
    """Whether there is enough memory for the caches and the write buffers."""
    return _judged(
        "memory",
        f"{available_bytes // _MIB} MiB of memory are available",
        "give the machine more memory, or lower messaging.tail_bytes_max",
        warns=available_bytes < MEMORY_WARNING_BYTES,
        is_problem=available_bytes < MEMORY_PROBLEM_BYTES,
    )


def _directories(settings: Settings, data: Path | None) -> DataDirectory:
    """The directories in which the server writes, with absolute paths. Raises:
    DirectoryNameError."""
    below = DataDirectories.below(data)
    found = DataDirectory(below.messages, below.snapshots)
    if data is not None:
        found = DataDirectory.locate(data, None)
    shared = settings.cluster.transactions_directory if settings.cluster.is_member else ""
    snapshots = Path(shared) if shared else found.snapshots
    return DataDirectory(found.messages.absolute(), snapshots.absolute())


def _stores(settings: Settings, directories: DataDirectory) -> Diagnosis:
    """Whether a server has used the data directory."""
    check = f"data {directories.path}"
    try:
        directories.require_stores(with_messages=settings.messaging.store == "leveldb")
    except RefusedError as error:
        advice = "name the --data of the server, unless this is its first start"
        return Diagnosis(check, Level.WARNING, str(error), advice)
    return Diagnosis(check, Level.OK, "it has the stores of a server")


def of_directory(directory: Path, *, elapsed_s: Callable[[], float]) -> Iterator[Diagnosis]:
    """Permissions, file system, space, inodes and the speed of syncs of one directory."""
    shown, there = str(directory), _existing(directory)
    is_writable = os.access(there, os.W_OK | os.X_OK)
    files = os.statvfs(there)
    yield _permissions(
        directory, parent_is_writable=is_writable, is_read_only=bool(files.f_flag & os.ST_RDONLY)
    )
    if (kind := _file_system_of(there)) is not None:
        yield file_system(shown, kind)
    usage = shutil.disk_usage(there)
    yield space(shown, Space(usage.free, usage.total))
    yield inodes(shown, free=files.f_favail, total=files.f_files)
    if is_writable:
        try:
            yield fsync(shown, sync_times(there, elapsed_s=elapsed_s))
        except OSError as error:
            detail = f"a file can't be written and synced: {error.strerror}"
            yield Diagnosis(f"fsync {shown}", Level.PROBLEM, detail, "look at the disk")


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above that exists."""
    found = directory.absolute()
    while not found.exists():
        found = found.parent
    return found


def _permissions(directory: Path, *, parent_is_writable: bool, is_read_only: bool) -> Diagnosis:
    """Whether this user can use a directory."""
    check = f"permissions {directory}"
    if is_read_only:
        detail = "its file system is read-only"
        advice = (
            "mount it for writing; a kernel makes it read-only after an error of the disk (dmesg)"
        )
        return Diagnosis(check, Level.PROBLEM, detail, advice)
    if not directory.exists():
        if parent_is_writable:
            return Diagnosis(check, Level.OK, "it does not exist yet, and can be made")
        detail = "it does not exist, and can't be made"
        return Diagnosis(check, Level.PROBLEM, detail, "make it, and give it to this user")
    if missing := _missing_rights(directory):
        detail = f"this user may not {' or '.join(missing)} there"
        advice = "give the directory and its files to the user of the server (chown -R)"
        return Diagnosis(check, Level.PROBLEM, detail, advice)
    return Diagnosis(check, Level.OK, "it can be read and written")


def _missing_rights(directory: Path) -> list[str]:
    rights = {"read": os.R_OK, "write": os.W_OK, "search": os.X_OK}
    missing = [name for name, right in rights.items() if not os.access(directory, right)]
    if not missing and not all(os.access(each, os.R_OK | os.W_OK) for each in _files(directory)):
        missing = ["read or write some files"]
    return missing


def _files(directory: Path) -> Iterable[Path]:
    return (each for each in directory.iterdir() if each.is_file())


def file_system(directory: str, kind: str) -> Diagnosis:
    """Whether what is written there survives the machine."""
    check = f"file system {directory}"
    if kind not in VOLATILE:
        return Diagnosis(check, Level.OK, f"it is {kind}")
    detail = f"it is {kind}, whose content is lost with the machine"
    return Diagnosis(check, Level.PROBLEM, detail, "put the data on a disk")


def _file_system_of(directory: Path) -> str | None:
    """The kind of the file system; None if it can't be found out."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    best, kind = Path(), None
    for line in mounts:
        _, point, found, *_ = line.split(" ")
        path = Path(point.encode("ascii", "replace").decode("unicode_escape"))
        is_above = path == directory or path in directory.parents
        if is_above and len(path.parts) >= len(best.parts):
            best, kind = path, found
    return kind


def space(directory: str, found: Space) -> Diagnosis:
    """Whether the disk of a directory has space, by the bounds of the server."""
    check, detail = f"space {directory}", f"{found.free_bytes // _MIB} MiB are free"
    if found.free_bytes < found.reserve_bytes:
        advice = f"free space: below {found.reserve_bytes // _MIB} MiB no messages are accepted"
        return Diagnosis(check, Level.PROBLEM, detail, advice)
    warns = found.free_bytes < found.warning_bytes
    return _judged(check, detail, "free space, or move the data", warns=warns, is_problem=False)


def inodes(directory: str, *, free: int, total: int) -> Diagnosis:
    """Whether new files can be made; `total` is 0 on file systems without a fixed number."""
    return _judged(
        f"inodes {directory}",
        f"{free} more files can be made" if total else "the number of files has no limit",
        "remove files, or use a file system with more inodes",
        warns=total > 0 and free < INODES_WARNING,
        is_problem=total > 0 and free < INODES_PROBLEM,
    )


def sync_times(directory: Path, *, elapsed_s: Callable[[], float]) -> list[float]:
    """How long each of some syncs of a small write takes there, in seconds. Raises: OSError."""
    times = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".tuff-doctor-") as file:
        for _ in range(SYNC_COUNT):
            file.seek(0)
            file.write(os.urandom(SYNC_BYTES))
            file.flush()
            began_s = elapsed_s()
            os.fdatasync(file.fileno())
            times.append(elapsed_s() - began_s)
    return times


def fsync(directory: str, seconds: Sequence[float]) -> Diagnosis:
    """Whether the disk syncs fast enough, by the times of single syncs."""
    ordered = sorted(seconds)
    middle, slow = ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]
    return _judged(
        f"fsync {directory}",
        f"a sync takes {middle * 1000:.2f} ms, and the slowest tenth {slow * 1000:.2f} ms",
        "use a local disk with power-loss protection; each acknowledgement waits for a sync",
        warns=slow >= FSYNC_WARNING_S,
        is_problem=slow >= FSYNC_PROBLEM_S,
    )


def _mode(check: str, rights: str | None, *, command: str) -> Diagnosis:
    """Whether every user of the machine has rights on what is to be protected; the command takes
    them away."""
    if rights is None:
        return Diagnosis(check, Level.OK, "its mode protects it from other users")
    detail = f"every user of this machine may {rights} it"
    return Diagnosis(check, Level.WARNING, detail, f"take the rights away: {command}")


def archive(directory: str) -> Diagnosis:
    """Whether the archive of expired messages is there. The setting may come before the archive."""
    check = f"archive {directory}"
    if Path(directory).is_dir():
        return Diagnosis(check, Level.OK, "it is a directory")
    advice = "mount it, or run `tuff-pipeline archive`; correct messaging.archive_directory"
    detail = "it is no directory, so reads that start before the log are refused"
    return Diagnosis(check, Level.WARNING, detail, advice)


def _transaction_files(directory: Path) -> tuple[int | None, list[Diagnosis]]:
    """The newest time in the headers of the transaction files, in ms; and the files that this
    version can't read."""
    if not directory.is_dir():
        return None, []
    times: list[int] = []
    found: list[Diagnosis] = []
    for path, kind in list_files(directory):
        try:
            times.append(known_file(path, kind).header.created_ms)
        except (DamagedFilesError, OSError) as error:
            advice = "check all files with `tuff fsck` while the server is stopped"
            found.append(Diagnosis(f"file {path.name}", Level.PROBLEM, str(error), advice))
    if not found:
        detail = f"the headers of {counted(len(times), 'transaction file')} can be read"
        found.append(Diagnosis("formats", Level.OK, detail))
    return max(times, default=None), found


def _is_synchronised() -> bool | None:
    """Whether an NTP client keeps the clock; None if the system does not say."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def clock(*, is_synchronised: bool | None, now_ms: int, newest_ms: int | None) -> Diagnosis:
    """Whether the clock can be trusted. `newest_ms` is the newest time in the files of a server."""
    if newest_ms is not None and now_ms < newest_ms - BEHIND_FILES_MS_MAX:
        behind_s = (newest_ms - now_ms) / 1000
        detail = f"the clock is {behind_s:.0f} s behind the newest file of this server"
        return Diagnosis("clock", Level.PROBLEM, detail, "set the clock; it was set back")
    if is_synchronised is False:
        detail = "the clock of this machine is not synchronised"
        return Diagnosis("clock", Level.WARNING, detail, "run an NTP client, as chrony")
    shown = "is synchronised" if is_synchronised else "may be synchronised: this can't be seen"
    return Diagnosis("clock", Level.OK, f"the clock of this machine {shown}")


def _needed_servers(settings: Settings) -> Iterator[tuple[str, tuple[str, int]]]:
    if settings.messaging.store == "hbase":
        for address in settings.hbase.addresses():
            yield "the HBase gateway", address
    zookeeper = settings.cluster.zookeeper() if settings.cluster.is_member else None
    if zookeeper is not None:
        for name in zookeeper[0].split(","):
            host, _, port = name.rpartition(":")
            yield "ZooKeeper", (host, int(port))


def _reachable(what: str, address: tuple[str, int]) -> Diagnosis:
    """Whether a server that this one needs accepts connections."""
    check = f"{what} {address[0]}:{address[1]}"
    try:
        socket.create_connection(address, CONNECT_S_MAX).close()
    except OSError as error:
        advice = f"start it, or correct the address in the settings; {what} is needed at the start"
        detail = f"it can't be reached: {error.strerror or error}"
        return Diagnosis(check, Level.PROBLEM, detail, advice)
    return Diagnosis(check, Level.OK, "it accepts connections")
