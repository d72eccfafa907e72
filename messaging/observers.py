"""The region observers, as the server sees them: hands them states, reads what they record.

Where rows lie in HBase, retention is done by its region servers when they write files anyway, and
not by scans and deletes from here (design §5, Retention). The formats are those of `handover`.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from messaging.batch import Batch
from messaging.engine import Engine
from messaging.handover import (
    MAJOR_SUFFIX,
    RECORDS,
    STATE_NAME,
    RegionRecord,
    UnreadableRecordError,
    cleared_everywhere,
    pack_state,
)
from messaging.live import Live
from messaging.retention import RetentionState, TopicRule
from messaging.storage.seam import Regional, Store
from messaging.writer import Write, Writer
from tuff.disk.files import make_directory, write_file
from tuff.disk.group import InThread
from tuff.protocol.pointers import PointerList

log = logging.getLogger(__name__)

FORGOTTEN_MS = 7 * 86_400_000  # ms; records of regions that were split or dropped go after that


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What observers may remove rows by, as of one moment; topics by what their keys begin with."""

    topics: Mapping[bytes, TopicRule]
    state: RetentionState
    in_progress: frozenset[int]
    invalid: PointerList


class Observers:
    """Lives on the event loop; files are read and written in threads."""

    def __init__(
        self, directory: Path, engine: Engine, live: Live, writer: Writer, *, in_thread: InThread
    ) -> None:
        self._directory = directory
        self._engine = engine
        self._live = live
        self._writer = writer
        self._in_thread = in_thread
        self._cleared: frozenset[int] = frozenset()

    async def hand_over(self, handed: Handed) -> None:
        """Let the regions remove what is dead by this state, and see what they have cleared.

        Raises:
            UnavailableError (its kinds): the store can't be read or written now.
        """
        # First the store: once a region server has the state, rows go, and no later run of this
        # server may show what is left around them.
        self._live.facts = replace(self._live.facts, handed_ms=handed.state.now_ms)
        await self._writer.submit(Write(Batch.force, internal=True))
        try:
            await self._in_thread(partial(_write, self._directory, handed))
        except OSError as error:
            log.warning("region observers get no newer state: %s", error)
        await self._look(now_ms=handed.state.now_ms)

    def has_cleared(self, pointer: int) -> bool:
        """Whether no row in any region carries this invalid pointer any more, as far as the regions
        were asked last."""
        return pointer in self._cleared

    async def _look(self, *, now_ms: int) -> None:
        regions = await self._engine.read(_regions)
        records = await self._in_thread(
            lambda: list(_records(self._directory / RECORDS, regions, now_ms=now_ms))
        )
        self._cleared = cleared_everywhere(regions, records)


def _write(directory: Path, handed: Handed) -> None:
    make_directory(directory / RECORDS)
    state = pack_state(
        handed.topics,
        state=handed.state,
        in_progress=handed.in_progress,
        invalid=handed.invalid,
    )
    write_file(directory / STATE_NAME, state)


def _regions(store: Store) -> frozenset[str]:
    return frozenset(store.message_regions()) if isinstance(store, Regional) else frozenset()


def _records(directory: Path, regions: frozenset[str], *, now_ms: int) -> Iterator[RegionRecord]:
    for path in sorted(directory.glob(f"*{MAJOR_SUFFIX}")):
        try:
            record = RegionRecord.from_bytes(path.read_bytes())
        except (OSError, UnreadableRecordError) as error:
            log.warning("the record %s of a region can't be read: %s", path, error)
            continue
        if record.region in regions:
            yield record
        elif record.ended_ms + FORGOTTEN_MS < now_ms:
            path.unlink(missing_ok=True)
