"""Finds changes below a directory since the catalogue's last update."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from catalog_rows import Entry

# Directories to ignore: history, and files that tools rebuild.
SKIPPED = {".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache",
           ".hypothesis", ".import_linter_cache"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One file that was `added`, `changed` or `removed`; a removed one has no entry."""

    kind: str
    path: bytes
    entry: Entry | None

    def announcement(self) -> str:
        """The message that announces the change."""
        value: dict[str, object] = {"change": self.kind, "path": shown_path(self.path)}
        if self.entry is not None:
            value["size"] = self.entry.size_bytes
            value["mtime"] = self.entry.mtime_ns / 1e9
            value["sha256"] = self.entry.sha256
        return json.dumps(value)


def shown_path(path: bytes) -> str:
    """A file's name as text, although on disk it may be any bytes."""
    return path.decode("utf-8", errors="backslashreplace")


def changes(directory: Path, known: Mapping[bytes, Entry]) -> Iterator[Change]:
    """The changes since `known`; reads only files whose size or time differ."""
    seen: set[bytes] = set()
    for path in _files(directory):
        name = os.fsencode(path.relative_to(directory))
        before = known.get(name)
        try:
            entry = _entry(path, before)
        except FileNotFoundError:
            continue  # gone since it was listed, and so it counts as removed
        seen.add(name)
        if entry != before:
            yield Change("added" if before is None else "changed", name, entry)
    for name in sorted(known.keys() - seen):
        yield Change("removed", name, None)


def _files(directory: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _entry(path: Path, before: Entry | None) -> Entry:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        is_same = before is not None and (before.size_bytes, before.mtime_ns) == (
            status.st_size,
            status.st_mtime_ns,
        )
        if is_same and before is not None:
            return before
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Entry(status.st_size, status.st_mtime_ns, digest)
