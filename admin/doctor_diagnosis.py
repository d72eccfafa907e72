"""What `tuff doctor` makes of its measurements: ok, warning or problem, with advice. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from process.disk_space import Space

FSYNC_WARNING_S = 0.05  # of the slowest tenth; each acknowledgement waits at least as long
FSYNC_PROBLEM_S = 0.5  # a commit would take a second
INODES_WARNING = 10_000  # files; LevelDB has one for some MiB
INODES_PROBLEM = 1_000
MEMORY_WARNING_BYTES = 512 << 20  # available; caches and write buffers take about half of it
MEMORY_PROBLEM_BYTES = 128 << 20
BEHIND_FILES_MS_MAX = 1_000  # ms; a clock so far behind its own files was set back
PYTHON_MIN = (3, 11)
VOLATILE = frozenset({"tmpfs", "ramfs"})  # file systems whose content ends with the machine's run

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


def python_version(version: tuple[int, int]) -> Diagnosis:
    """Whether this Python is supported."""
    text, needed = ".".join(map(str, version)), ".".join(map(str, PYTHON_MIN))
    if version >= PYTHON_MIN:
        return Diagnosis("python", Level.OK, f"Python {text} is supported")
    return Diagnosis(
        "python",
        Level.PROBLEM,
        f"Python {text} is older than {needed}",
        f"install Python {needed} or later",
    )


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


def slow_checksums() -> Diagnosis:
    """The CRC-32C library was installed without its C code."""
    return Diagnosis(
        "library google-crc32c without its C code",
        Level.WARNING,
        "google-crc32c runs without its C code: fsck, salvage and reads beside corruption take "
        "hundreds of times as long",
        "install its wheel, or a C compiler and the library crc32c, and then google-crc32c again",
    )


def _numbers(version: str) -> list[int]:
    """The leading numbers of a version."""
    found = []
    for part in version.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return found


def open_files(limit: int | None, *, connections_max: int, spare: int) -> Diagnosis:
    """Whether the process may open as many files as its connections and stores need. `limit` is the
    hard limit, to which a server raises its own; None: there is none."""
    wanted = connections_max + spare
    if limit is None or limit >= wanted:
        shown = "unlimited" if limit is None else str(limit)
        return Diagnosis("open files", Level.OK, f"the limit is {shown}, and {wanted} are needed")
    detail = f"at most {limit} files may be open; {connections_max} connections need {wanted}"
    advice = f"raise the limit (LimitNOFILE={wanted} of systemd), or lower server.max_connections"
    is_grave = limit <= spare
    return Diagnosis("open files", Level.PROBLEM if is_grave else Level.WARNING, detail, advice)


def memory(available_bytes: int) -> Diagnosis:
    """Whether there is enough memory for the caches and the write buffers."""
    detail = f"{available_bytes // _MIB} MiB of memory are available"
    if available_bytes >= MEMORY_WARNING_BYTES:
        return Diagnosis("memory", Level.OK, detail)
    level = Level.PROBLEM if available_bytes < MEMORY_PROBLEM_BYTES else Level.WARNING
    advice = "give the machine more memory, or lower messaging.tail_bytes_max"
    return Diagnosis("memory", level, detail, advice)


def space(directory: str, found: Space) -> Diagnosis:
    """Whether the disk of a directory has space, by the bounds of the server."""
    check, detail = f"space {directory}", f"{found.free_bytes // _MIB} MiB are free"
    if found.free_bytes < found.reserve_bytes:
        advice = f"free space: below {found.reserve_bytes // _MIB} MiB no messages are accepted"
        return Diagnosis(check, Level.PROBLEM, detail, advice)
    if found.free_bytes < found.warning_bytes:
        return Diagnosis(check, Level.WARNING, detail, "free space, or move the data")
    return Diagnosis(check, Level.OK, detail)


def inodes(directory: str, *, free: int, total: int) -> Diagnosis:
    """Whether new files can be made; `total` is 0 on file systems without a fixed number."""
    check, detail = f"inodes {directory}", f"{free} more files can be made"
    if not total or free >= INODES_WARNING:
        return Diagnosis(check, Level.OK, detail if total else "the number of files has no limit")
    level = Level.PROBLEM if free < INODES_PROBLEM else Level.WARNING
    return Diagnosis(check, level, detail, "remove files, or use a file system with more inodes")


def fsync(directory: str, seconds: Sequence[float]) -> Diagnosis:
    """Whether the disk syncs fast enough, by the times of single syncs."""
    check = f"fsync {directory}"
    ordered = sorted(seconds)
    middle, slow = ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]
    detail = f"a sync takes {middle * 1000:.2f} ms, and the slowest tenth {slow * 1000:.2f} ms"
    if slow < FSYNC_WARNING_S:
        return Diagnosis(check, Level.OK, detail)
    level = Level.PROBLEM if slow >= FSYNC_PROBLEM_S else Level.WARNING
    advice = "use a local disk with power-loss protection; each acknowledgement waits for a sync"
    return Diagnosis(check, level, detail, advice)


def file_system(directory: str, kind: str | None) -> Diagnosis | None:
    """Whether what is written there survives the machine; None where the kind is not known."""
    if kind is None:
        return None
    check = f"file system {directory}"
    if kind not in VOLATILE:
        return Diagnosis(check, Level.OK, f"it is {kind}")
    detail = f"it is {kind}, whose content is lost with the machine"
    return Diagnosis(check, Level.PROBLEM, detail, "put the data on a disk")


def data(directory: str, failure: str | None) -> Diagnosis:
    """Whether a server has used a data directory. `failure`: what is missing there."""
    check = f"data {directory}"
    if failure is None:
        return Diagnosis(check, Level.OK, "it has the stores of a server")
    advice = "name the --data of the server, unless this is its first start"
    return Diagnosis(check, Level.WARNING, failure, advice)


def permissions(directory: str, *, missing: Sequence[str], parent_is_writable: bool) -> Diagnosis:
    """Whether this user can use a directory. `missing` are the rights that it lacks there; with
    `exists` among them there is no such directory yet."""
    check = f"permissions {directory}"
    if not missing:
        return Diagnosis(check, Level.OK, "it can be read and written")
    if "exists" in missing:
        if parent_is_writable:
            return Diagnosis(check, Level.OK, "it does not exist yet, and can be made")
        detail = "it does not exist, and can't be made"
        return Diagnosis(check, Level.PROBLEM, detail, "make it, and give it to this user")
    detail = f"this user may not {' or '.join(missing)} there"
    advice = "give the directory and its files to the user of the server (chown -R)"
    return Diagnosis(check, Level.PROBLEM, detail, advice)


def read_only(directory: str) -> Diagnosis:
    """The file system of a directory takes no writes."""
    detail = "its file system is read-only"
    advice = "mount it for writing; a kernel makes it read-only after an error of the disk (dmesg)"
    return Diagnosis(f"permissions {directory}", Level.PROBLEM, detail, advice)


def file_mode(check: str, rights: str | None) -> Diagnosis:
    """Whether every user of the machine has rights on a file that is to be protected."""
    if rights is None:
        return Diagnosis(check, Level.OK, "its mode protects it from other users")
    detail = f"every user of this machine may {rights} it"
    return Diagnosis(check, Level.WARNING, detail, "take the rights away: chmod o-rw")


def data_mode(directory: str, rights: str | None) -> Diagnosis:
    """Whether every user of the machine has rights on the data in a directory."""
    check = f"data in {directory}"
    if rights is None:
        return Diagnosis(check, Level.OK, "other users have no access to it")
    detail = f"every user of this machine may {rights} it"
    return Diagnosis(check, Level.WARNING, detail, f"take the rights away: chmod o-rwx {directory}")


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


def reachable(what: str, address: str, failure: str | None) -> Diagnosis:
    """Whether a server that this one needs accepts connections."""
    check = f"{what} {address}"
    if failure is None:
        return Diagnosis(check, Level.OK, "it accepts connections")
    advice = f"start it, or correct the address in the settings; {what} is needed at the start"
    return Diagnosis(check, Level.PROBLEM, f"it can't be reached: {failure}", advice)


def archive(directory: str, *, is_there: bool) -> Diagnosis:
    """Whether the archive of expired messages is there. The setting may come before the archive."""
    check = f"archive {directory}"
    if is_there:
        return Diagnosis(check, Level.OK, "it is a directory")
    advice = "mount it, or run `tuff-pipeline archive`; correct messaging.archive_directory"
    detail = "it is no directory, so reads that start before the log are refused"
    return Diagnosis(check, Level.WARNING, detail, advice)


def settings(failure: str | None, changed_count: int) -> Diagnosis:
    """Whether the settings can be used."""
    if failure is None:
        detail = f"the settings are possible; {changed_count} not at the default"
        return Diagnosis("settings", Level.OK, detail)
    return Diagnosis("settings", Level.PROBLEM, failure, "correct the settings file")
