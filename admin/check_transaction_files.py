"""Check transaction logs and snapshots, each alone and all together: a part of `tuff fsck`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from admin.findings import Finding
from tx.files import (
    NEWER,
    ContradictionError,
    DamagedFilesError,
    FileKind,
    KnownFile,
    NewerFilesError,
    known_file,
    list_files,
    without_advice,
)
from tx.recovery import StoreMark, recover
from tx.snapshot_file import read_snapshot
from tx.state import TransactionState
from tx.wal import read_log

ADVICE = (
    "put the file back from a backup, or write what can be proven into a new directory with "
    "`tuff salvage`"
)


@dataclass
class TransactionFilesReport:
    """What is wrong with the files, and the state from which a server would start; None if it
    would not."""

    findings: list[Finding] = field(default_factory=list)
    state: TransactionState | None = None


def check_transaction_files(directory: Path, mark: StoreMark | None) -> TransactionFilesReport:
    """Read every transaction file of a directory that no server uses. Changes nothing.

    Raises: OSError: a file can't be read.
    """
    report = TransactionFilesReport()
    paths = list_files(directory) if directory.is_dir() else []
    files: list[KnownFile] = []
    for path, kind in paths:
        try:
            files.append(known_file(path, kind))
        except DamagedFilesError as error:
            report.findings.append(_finding(directory, path.name, error))
    report.findings += _file_findings(directory, files)
    if paths:
        _check_recovery(directory, mark, report)
    elif mark is not None and mark.has_seen_files:
        reason = (
            "there are no transaction files, but the message store has seen some; if they are in "
            "another directory, name it with --snapshots"
        )
        report.findings.append(Finding(directory.name, reason, ADVICE))
    return report


def _check_recovery(
    directory: Path, mark: StoreMark | None, report: TransactionFilesReport
) -> None:
    try:
        recovered = recover(directory, mark)
    except ContradictionError as error:
        # The check of each file alone does not find it.
        report.findings.append(Finding(directory.name, without_advice(error), ADVICE))
    except DamagedFilesError as error:
        # Reported only if the check of each file alone found nothing: else it is said already.
        if not any(finding.is_corruption for finding in report.findings):
            report.findings.append(Finding(directory.name, str(error), ADVICE))
    else:
        report.state = None if recovered is None else recovered.state


def _finding(directory: Path, name: str, error: DamagedFilesError) -> Finding:
    # The finding has its own location and advice.
    reason = without_advice(error).removeprefix(f"{name} ").removeprefix("is ")
    advice = NEWER if isinstance(error, NewerFilesError) else ADVICE
    return Finding(f"{directory.name}/{name}", reason, advice)


def _file_findings(directory: Path, files: Iterable[KnownFile]) -> list[Finding]:
    by_age = sorted(files, key=lambda known: known.header.sequence)
    proven_lengths = {
        known.header.previous_sequence: known.header.previous_length
        for known in by_age
        if known.kind is FileKind.LOG
    }
    findings = []
    for known in by_age:
        length = proven_lengths.get(known.header.sequence)
        try:
            findings += _check_content(directory, known, length)
        except DamagedFilesError as error:
            findings.append(_finding(directory, known.path.name, error))
    return [*findings, *_missing_logs(directory, by_age)]


def _check_content(directory: Path, known: KnownFile, proven_length: int | None) -> list[Finding]:
    name, data = known.path.name, known.path.read_bytes()
    if known.kind is FileKind.SNAPSHOT:
        read_snapshot(name, data)
        return []
    contents = read_log(name, data, proven_length=proven_length)
    if not contents.cut_bytes:
        return []
    reason = (
        f"{contents.cut_bytes} bytes from byte {contents.length} on can't be read: either a write "
        "that a crash cut off and that was not acknowledged, or corruption of the last one"
    )
    advice = "nothing, if the machine crashed; the next start cuts them off"
    return [Finding(f"{directory.name}/{name}", reason, advice, is_corruption=False)]


def _missing_logs(directory: Path, by_age: Sequence[KnownFile]) -> list[Finding]:
    """Logs that a later one names as its predecessor, back to the oldest file that exists."""
    sequences = {known.header.sequence for known in by_age}
    oldest = min(sequences, default=0)
    return [
        Finding(
            f"{directory.name}/{known.path.name}",
            f"the log before it, file {known.header.previous_sequence}, is missing",
            ADVICE,
        )
        for known in by_age
        if known.header.previous_sequence > oldest
        and known.header.previous_sequence not in sequences
    ]
