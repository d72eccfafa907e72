"""`tuff doctor` on the machine of a server: measures what `admin/doctor_diagnosis.py` judges.

It needs no stopped server. It writes one file of 4 KiB into each data directory, and removes it.
"""

import ctypes
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from admin import doctor_diagnosis
from admin.data_directory import DataDirectory
from admin.doctor_diagnosis import Diagnosis, Level
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


def findings(
    config: Path | None,
    data: Path | None,
    assignments: list[str],
    *,
    now_ms: int,
    elapsed_s: Callable[[], float],
) -> Iterator[Diagnosis]:
    """All findings about a machine, and the settings and the directories of a server there."""
    yield doctor_diagnosis.python_version(platform_version())
    engine = plyvel.__name__.replace("_", "-")
    for name, minimum in {engine: ENGINES[engine], **LIBRARIES}.items():
        yield doctor_diagnosis.library(name, _installed(name), minimum)
    if not crc32c.is_fast():
        yield doctor_diagnosis.slow_checksums()
    try:
        settings = load(config, assignments)
        directories = _directories(settings, data)
    except (SettingsError, DirectoryNameError) as error:
        yield doctor_diagnosis.settings(str(error), 0)
        return
    yield doctor_diagnosis.settings(None, len(changed(settings)))
    for setting, file, rights in protected_files(settings):
        yield doctor_diagnosis.file_mode(f"{setting} {file}", rights)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield doctor_diagnosis.open_files(
        None if hard == resource.RLIM_INFINITY else hard,
        connections_max=settings.server.max_connections,
        spare=SPARE_DESCRIPTORS,
    )
    yield from _memory()
    yield _stores(settings, directories)
    written = [directories.snapshots]
    if settings.messaging.store == "leveldb":
        written.append(directories.messages)
    for directory in written:
        yield from of_directory(directory, elapsed_s=elapsed_s)
        yield doctor_diagnosis.data_mode(str(directory), rights_within(directory))
    yield from _archive(settings)
    newest_ms, unreadable = _transaction_files(directories.snapshots)
    yield doctor_diagnosis.clock(
        is_synchronised=_is_synchronised(), now_ms=now_ms, newest_ms=newest_ms
    )
    yield from unreadable
    for what, address in _needed_servers(settings):
        yield doctor_diagnosis.reachable(what, ":".join(map(str, address)), _connect(address))


def platform_version() -> tuple[int, int]:
    """The version of this Python."""
    major, minor, _ = platform.python_version_tuple()
    return int(major), int(minor)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _memory() -> Iterator[Diagnosis]:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield doctor_diagnosis.memory(int(rest.split()[0]) * 1024)


def _archive(settings: Settings) -> Iterator[Diagnosis]:
    if directory := settings.messaging.archive_directory:
        yield doctor_diagnosis.archive(directory, is_there=Path(directory).is_dir())


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
    try:
        directories.require_stores(with_messages=settings.messaging.store == "leveldb")
    except RefusedError as error:
        return doctor_diagnosis.data(str(directories.path), str(error))
    return doctor_diagnosis.data(str(directories.path), None)


def of_directory(directory: Path, *, elapsed_s: Callable[[], float]) -> Iterator[Diagnosis]:
    """Permissions, file system, space, inodes and the speed of syncs of one directory."""
    shown, there = str(directory), _existing(directory)
    missing = _missing_rights(directory)
    is_writable = os.access(there, os.W_OK | os.X_OK)
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        yield doctor_diagnosis.read_only(shown)
    else:
        yield doctor_diagnosis.permissions(shown, missing=missing, parent_is_writable=is_writable)
    kind = doctor_diagnosis.file_system(shown, _file_system(there))
    if kind is not None:
        yield kind
    usage = shutil.disk_usage(there)
    yield doctor_diagnosis.space(shown, Space(usage.free, usage.total))
    files = os.statvfs(there)
    yield doctor_diagnosis.inodes(shown, free=files.f_favail, total=files.f_files)
    if is_writable:
        try:
            yield doctor_diagnosis.fsync(shown, sync_times(there, elapsed_s=elapsed_s))
        except OSError as error:
            detail = f"a file can't be written and synced: {error.strerror}"
            yield Diagnosis(f"fsync {shown}", Level.PROBLEM, detail, "look at the disk")


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above that exists."""
    found = directory.absolute()
    while not found.exists():
        found = found.parent
    return found


def _missing_rights(directory: Path) -> list[str]:
    if not directory.exists():
        return ["exists"]
    rights = {"read": os.R_OK, "write": os.W_OK, "search": os.X_OK}
    missing = [name for name, right in rights.items() if not os.access(directory, right)]
    if not missing and not all(os.access(each, os.R_OK | os.W_OK) for each in _files(directory)):
        missing = ["read or write some files"]
    return missing


def _files(directory: Path) -> Iterable[Path]:
    return (each for each in directory.iterdir() if each.is_file())


def _file_system(directory: Path) -> str | None:
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


def _needed_servers(settings: Settings) -> Iterator[tuple[str, tuple[str, int]]]:
    if settings.messaging.store == "hbase":
        for address in settings.hbase.addresses():
            yield "the HBase gateway", address
    zookeeper = settings.cluster.zookeeper() if settings.cluster.is_member else None
    if zookeeper is not None:
        for name in zookeeper[0].split(","):
            host, _, port = name.rpartition(":")
            yield "ZooKeeper", (host, int(port))


def _connect(address: tuple[str, int]) -> str | None:
    """Why a connection fails; None if it does not."""
    try:
        socket.create_connection(address, CONNECT_S_MAX).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
