"""Whether the transaction files are whole, and fit together: what `tuff fsck` tells of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuff.disk.findings import NEWER, Finding
from tx.files import (
    ContradictionError,
    DamagedFilesError,
    FileKind,
    KnownFile,
    NewerFilesError,
    known_file,
    list_files,
    without_advice,
)
from tx.logfile import read_log
from tx.recovery import StoreMark, recover
from tx.snapshots import read_snapshot
from tx.state import TransactionState

ADVICE = (
    "put the file back from a backup, or write what can be proven into a new directory with "
    "`tuff salvage`"
)


@dataclass
class FilesAccount:
    """What is wrong with the files, and the state that a server would start from, if it would."""

    findings: list[Finding] = field(default_factory=list)
    state: TransactionState | None = None


def check_files(directory: Path, mark: StoreMark | None) -> FilesAccount:
    """Read every transaction file of a directory that no server uses. Changes nothing.

    Raises: OSError: a file can't be read.
    """
    account = FilesAccount()
    paths = list_files(directory) if directory.is_dir() else []
    files: list[KnownFile] = []
    for path, kind in paths:
        try:
            files.append(known_file(path, kind))
        except DamagedFilesError as error:
            account.findings.append(_finding(directory, path.name, error))
    account.findings += _file_findings(directory, files)
    if paths:
        _check_together(directory, mark, account)
    elif mark is not None and mark.has_seen_files:
        reason = (
            "there are no transaction files, though the message store has seen some; where they "
            "lie in another directory, name it with --snapshots"
        )
        account.findings.append(Finding(directory.name, reason, ADVICE))
    return account


def _check_together(directory: Path, mark: StoreMark | None, account: FilesAccount) -> None:
    try:
        recovered = recover(directory, mark)
    except ContradictionError as error:
        # No file says that by itself.
        account.findings.append(Finding(directory.name, without_advice(error), ADVICE))
    except DamagedFilesError as error:
        # Said again by the whole only where no file by itself has said it.
        if not any(finding.is_damage for finding in account.findings):
            account.findings.append(Finding(directory.name, str(error), ADVICE))
    else:
        account.state = None if recovered is None else recovered.state


def _finding(directory: Path, name: str, error: DamagedFilesError) -> Finding:
    # What to do is said once, by the finding.
    reason = without_advice(error).removeprefix(f"{name} ").removeprefix("is ")
    advice = NEWER if isinstance(error, NewerFilesError) else ADVICE
    return Finding(f"{directory.name}/{name}", reason, advice)


def _file_findings(directory: Path, files: Iterable[KnownFile]) -> list[Finding]:
    by_age = sorted(files, key=lambda known: known.header.sequence)
    successors = {
        known.header.previous_sequence: known.header.previous_length
        for known in by_age
        if known.kind is FileKind.LOG
    }
    findings = []
    for known in by_age:
        length = successors.get(known.header.sequence)
        try:
            findings += _check(directory, known, length)
        except DamagedFilesError as error:
            findings.append(_finding(directory, known.path.name, error))
    return [*findings, *_missing(directory, by_age)]


def _check(directory: Path, known: KnownFile, proven_length: int | None) -> list[Finding]:
    name, data = known.path.name, known.path.read_bytes()
    if known.kind is FileKind.SNAPSHOT:
        read_snapshot(name, data)
        return []
    contents = read_log(name, data, proven_length=proven_length)
    if not contents.cut_bytes:
        return []
    reason = (
        f"{contents.cut_bytes} bytes from byte {contents.length} on can't be read: a write that a "
        "crash cut off, of which nothing was acknowledged, or damage to the last one"
    )
    advice = "nothing, if the machine crashed; the next start cuts them off"
    return [Finding(f"{directory.name}/{name}", reason, advice, is_damage=False)]


def _missing(directory: Path, by_age: Sequence[KnownFile]) -> list[Finding]:
    """Logs that a later one names, back to the oldest file that is there."""
    there = {known.header.sequence for known in by_age}
    oldest = min(there, default=0)
    return [
        Finding(
            f"{directory.name}/{known.path.name}",
            f"the log before it, file {known.header.previous_sequence}, is missing",
            ADVICE,
        )
        for known in by_age
        if known.header.previous_sequence > oldest and known.header.previous_sequence not in there
    ]
