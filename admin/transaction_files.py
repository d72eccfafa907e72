"""Read transaction logs and snapshots, also corrupt ones: check them for `tuff fsck`, find every
readable edit for `tuff salvage`, and write new ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from admin.findings import Finding
from tuff_storage.disk.files import make_directory
from tuff_storage.disk.records import Damage, Frame, read_frame
from tx.file_headers import (
    HEAD_SIZE,
    NEWER,
    ContradictionError,
    DamagedFilesError,
    FileHeader,
    FileKind,
    KnownFile,
    NewerFilesError,
    file_infos,
    free_path,
    leftovers,
    newer,
    without_advice,
)
from tx.log_records import Edit, MalformedError, NewerError, decode_edit
from tx.mixed_backups import RecordedFiles
from tx.recovery import recover
from tx.snapshot_file import read_snapshot, write_snapshot
from tx.state import StateImage, TransactionState
from tx.wal import DiskFile, create_log, proofs_behind, read_log

ADVICE = (
    "put the file back from a backup, or write everything provable to a new directory with "
    "`tuff salvage`"
)


@dataclass
class TransactionFilesReport:
    """What is wrong with the files, and the state from which a server would start; None if it
    would not."""

    findings: list[Finding] = field(default_factory=list)
    state: TransactionState | None = None


@dataclass
class ReadableEdits:
    """Everything readable in the files of a directory: headers, intact snapshots, and edits by
    LSN."""

    headers: list[FileHeader] = field(default_factory=list)
    images: list[StateImage] = field(default_factory=list)
    edits: dict[int, Edit] = field(default_factory=dict)

    @property
    def store_id(self) -> str | None:
        """The one that most of the files have; None if no header can be read."""
        ids = [header.store_id for header in self.headers]
        return max(ids, key=ids.count, default=None)


class TransactionFiles:
    """The transaction files of a directory that no server uses. Blocks; changes nothing."""

    def __init__(self, directory: Path) -> None:
        """Raises: OSError: a file can't be read."""
        self._directory = directory
        # The content is read when it is needed, so that one file at a time is in memory.
        found = file_infos(directory)
        known = [KnownFile(each.path, each.kind, each.header) for each in found if each.header]
        self._damaged = [(each.path, each.kind, each.damage) for each in found if each.damage]
        self._leftovers = leftovers(known)
        self._files = [each for each in known if each not in self._leftovers]

    def check(self, recorded: RecordedFiles | None) -> TransactionFilesReport:
        """Check each file alone, and recover the state from all of them.

        Raises: OSError: a file can't be read.
        """
        report = TransactionFilesReport(self._file_findings())
        if self._files or self._damaged:
            self._check_recovery(recorded, report)
        elif recorded is not None and recorded.has_seen_files:
            reason = (
                "there are no transaction files, but the message store has seen some; if they are "
                "in another directory, name it with --snapshots"
            )
            report.findings.append(Finding(self._directory.name, reason, ADVICE))
        return report

    def readable_edits(self) -> ReadableEdits:
        """Read every file as far as possible, also past corruption.

        Raises:
            NewerFilesError: a newer version wrote some of it; left out, it would be lost.
        """
        readable = ReadableEdits([known.header for known in self._files])
        # The first LSN, the name and the edits of each.
        logs: list[tuple[int, str, list[tuple[int, Edit]]]] = []
        for path, kind, error in self._damaged:
            if isinstance(error, NewerFilesError):
                raise error
            if kind is FileKind.LOG:
                edits = list(_edits(path.name, path.read_bytes()))
                logs.append((edits[0][0] if edits else 0, path.name, edits))
        for known in self._files:
            if known.kind is FileKind.SNAPSHOT:
                readable.images += _images(known)
            else:
                name, data = known.path.name, known.path.read_bytes()
                acknowledged = _acknowledged(data, known.header, readable.headers)
                logs.append((known.header.lsn, name, list(_edits(name, acknowledged))))
        for first_lsn, _, edits in sorted((each for each in logs if each[2]), key=itemgetter(0, 1)):
            # Starting this log cut off the older log's edits from here on.
            for lsn in [lsn for lsn in readable.edits if lsn >= first_lsn]:
                del readable.edits[lsn]
            readable.edits |= edits
        return readable

    def _check_recovery(
        self, recorded: RecordedFiles | None, report: TransactionFilesReport
    ) -> None:
        name = self._directory.name
        try:
            recovered = recover(self._directory, recorded)
        except ContradictionError as error:
            # The check of each file alone does not find it.
            report.findings.append(Finding(name, without_advice(error), ADVICE))
        except DamagedFilesError as error:
            # Only if the check of each file found nothing; otherwise it is reported already.
            if not any(finding.is_corruption for finding in report.findings):
                report.findings.append(Finding(name, str(error), ADVICE))
        else:
            report.state = None if recovered is None else recovered.state

    def _file_findings(self) -> list[Finding]:
        findings = [self._finding(path.name, error) for path, _, error in self._damaged]
        by_age = sorted(self._files, key=lambda known: known.header.sequence)
        proven_lengths = {
            known.header.previous_sequence: known.header.previous_length
            for known in by_age
            if known.kind is FileKind.LOG
        }
        for known in by_age:
            try:
                findings += self._check_content(known, proven_lengths.get(known.header.sequence))
            except DamagedFilesError as error:
                findings.append(self._finding(known.path.name, error))
        return [*findings, *self._missing_logs(by_age), *map(self._leftover, self._leftovers)]

    def _leftover(self, known: KnownFile) -> Finding:
        location = f"{self._directory.name}/{known.path.name}"
        reason = "a server made it when another one led transactions already, so it is ignored"
        advice = "nothing; the server that leads removes it with one of its next snapshots"
        return Finding(location, reason, advice, is_corruption=False)

    def _check_content(self, known: KnownFile, proven_length: int | None) -> list[Finding]:
        name, data = known.path.name, known.path.read_bytes()
        if known.kind is FileKind.SNAPSHOT:
            read_snapshot(name, data)
            return []
        contents = read_log(name, data, proven_length=proven_length)
        if not contents.cut_bytes:
            return []
        reason = (
            f"{contents.cut_bytes} bytes from byte {contents.length} on can't be read: either a "
            "write that a crash cut off and that was not acknowledged, or corruption of the last "
            "one"
        )
        advice = "nothing, if the machine crashed; the next start cuts them off"
        return [Finding(f"{self._directory.name}/{name}", reason, advice, is_corruption=False)]

    def _missing_logs(self, by_age: Sequence[KnownFile]) -> Iterator[Finding]:
        """Logs that a later file names as its predecessor, back to the oldest file that exists."""
        sequences = {known.header.sequence for known in by_age}
        oldest = min(sequences, default=0)
        for known in by_age:
            previous = known.header.previous_sequence
            if previous > oldest and previous not in sequences:
                reason = f"the log before it, file {previous}, is missing"
                yield Finding(f"{self._directory.name}/{known.path.name}", reason, ADVICE)

    def _finding(self, name: str, error: DamagedFilesError) -> Finding:
        # The finding has its own location and advice.
        reason = without_advice(error).removeprefix(f"{name} ").removeprefix("is ")
        advice = NEWER if isinstance(error, NewerFilesError) else ADVICE
        return Finding(f"{self._directory.name}/{name}", reason, advice)


def write_transaction_files(
    directory: Path, image: StateImage, *, store_id: str, now_ms: int
) -> KnownFile:
    """Write a log and a snapshot from which a server starts, to a directory without any.

    Raises: OSError.
    """
    make_directory(directory)
    log = FileHeader(sequence=1, store_id=store_id, created_ms=now_ms, lsn=image.lsn + 1)
    path = free_path(directory, FileKind.LOG, now_ms=now_ms, epoch=log.epoch)
    create_log(path, log, (), open_file=DiskFile).file.close()
    snapshot = FileHeader(sequence=2, store_id=store_id, created_ms=now_ms, lsn=image.lsn)
    return write_snapshot(directory, snapshot, image)[0]


def _images(known: KnownFile) -> list[StateImage]:
    try:
        return [read_snapshot(known.path.name, known.path.read_bytes())[1]]
    except NewerFilesError:
        raise
    except DamagedFilesError:
        return []


def _acknowledged(data: bytes, header: FileHeader, headers: Iterable[FileHeader]) -> bytes:
    """The bytes up to the length that the log after it records; all, if there is none."""
    for later in headers:
        if later.previous_sequence == header.sequence:
            return data[: later.previous_length]
    return data


# A corrupt length hides where the next frame starts. But each write begins with a proof that
# contains its own offset, and reading continues at the next proof with a correct offset.


def _edits(name: str, data: bytes) -> Iterator[tuple[int, Edit]]:
    at = HEAD_SIZE
    while at < len(data):
        found = read_frame(data, at)
        if isinstance(found, Damage):
            at = _next_frame(data, at)
            continue
        at = found.stop
        try:
            yield decode_edit(found.body)
        except NewerError as error:
            raise newer(name, found.start, str(error)) from None
        except MalformedError:
            continue  # the header, or a proof


def _next_frame(data: bytes, corrupt_at: int) -> int:
    """The offset at which reading continues after a corrupt frame; the end if there is none."""
    stop = corrupt_at + 8 + int.from_bytes(data[corrupt_at : corrupt_at + 4], "big")
    # The length may be right, and the body or the checksum wrong.
    if isinstance(read_frame(data, stop), Frame):
        return stop
    return next((proof.start for proof in proofs_behind(data, corrupt_at + 1)), len(data))
