"""A message store for the simulated disk, behind the same seam as LevelDB (design §5).

LevelDB is a C++ library with its own file calls, so it can't run here. This store makes the same
promises: a batch is there whole or not at all, and durable once `write` has returned. It works like
LevelDB: a log of checksummed batches, whose torn tail is cut; what was read at the opening is
written to a new file before it is used.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from messaging.engines.engine_interface import Chunks, StoreDamagedError, StoreError
from messaging.engines.memory import MemoryStore
from tests.simulation.files import SimPath
from tuff_storage.disk.files import write_file
from tuff_storage.disk.records import Frame, pack_frame, read_frames

Change = tuple[bytes, bytes | None]


class SimStore:
    """All rows in memory, and every batch in the log at `path`."""

    has_views = True
    packs_rows = True

    def __init__(self, path: SimPath) -> None:
        self._path = path
        try:
            rows = _read(path)
            # A new file even where nothing was torn: after a failed sync, bytes can be read that
            # are not on the disk.
            write_file(path, _pack(sorted(rows.items())))
        except OSError as error:
            raise StoreError(f"the store can't be opened: {error}") from error
        self._memory = MemoryStore(rows)
        self._file = path.disk.find((path.directory, path.name))

    def get(self, key: bytes) -> bytes | None:
        return self._memory.get(key)

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        return self._memory.scan(start, stop, **how)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        return self._memory.approximate_size(start, stop)

    def write(self, batch: Sequence[Change]) -> None:
        disk, directory = self._path.disk, self._path.directory
        assert self._file is not None
        try:
            disk.append(directory, self._file, _pack(batch))
            disk.sync(directory, self._file)
        except OSError as error:
            raise StoreError(f"the store can't be written: {error}") from error
        self._memory.write(batch)

    def close(self) -> None:
        self._memory.close()


def _pack(batch: Sequence[Change]) -> bytes:
    return pack_frame(msgpack.packb(batch))


def _read(path: SimPath) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    if not path.is_file():
        return rows
    frames = 0
    for found in read_frames(path.read_bytes()):
        if isinstance(found, Frame):
            frames += 1
            for key, value in msgpack.unpackb(found.body):
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
    if not frames:
        raise StoreDamagedError(f"{path} holds nothing that can be read")
    return rows
