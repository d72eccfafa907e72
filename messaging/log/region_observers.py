"""Region observers: retention by HBase's region servers (design §5, Retention).

If the rows are in HBase, its region servers apply retention when they rewrite files anyway, and
this server needs no scans and deletes for it. It exchanges two kinds of files with them.

    state    := "TUFFRTST" version(2) crc(4) now_ms(8) longest_ms(8) topics pointers pointers
    topics   := count(4) topic*        first the pointers in progress, then the invalid ones
    topic    := size(2) name(size) generation(4, signed) ttl_s(4) floor_ms(8) floor_seq(2)
    record   := "TUFFRGRC" version(2) crc(4) size(2) region(size) state_ms(8) ended_ms(8)
                dropped(8) inverted(8) pointers
    pointers := count(4) pointer(8)*

Big-endian; the CRC-32 covers all bytes after it. By a state a region server decides which rows to
remove, as of one moment of this server's clock. An older state removes a subset of what a newer one
removes: generations and log starts only grow, a longer time to live raises the log start, and an
invalid pointer never becomes valid. So a state that is read late does no harm. A record reports
the newest flush or compaction of one region.
"""

import logging
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from messaging.engines.engine_interface import HasRegions
from messaging.engines.row_store import Store
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.model.expiry import RetentionState, TopicRule
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff_storage.checksum import crc32
from tuff_storage.disk.files import make_directory, write_file

log = logging.getLogger(__name__)

STATE_NAME = "state"
RECORDS = "regions"  # the directory of the records, beside the state
MAJOR_SUFFIX = ".major"  # of a record of a major compaction
FLUSH_SUFFIX = ".flush"  # of a flush; the third kind is .minor
VERSION = 1
# ms; then the records of regions that were split or dropped are deleted
FORGOTTEN_MS = 7 * 86_400_000

_STATE_MAGIC, _RECORD_MAGIC = b"TUFFRTST", b"TUFFRGRC"
_HEAD = struct.Struct(">8sHI")
_TIMES = struct.Struct(">QQ")
_COUNT = struct.Struct(">I")
_SIZE = struct.Struct(">H")
_RULE = struct.Struct(">iIQH")
_POINTER = struct.Struct(">Q")
_RECORD = struct.Struct(">QQQQ")
assert (_HEAD.size, _TIMES.size, _RULE.size, _RECORD.size) == (14, 16, 18, 32)


class UnreadableRecordError(Exception):
    """A file is not a complete state or record; the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRecord:
    """The newest flush, minor or major compaction of a region.

    `state_ms` is the time of the state that it used. `cleared` are the invalid pointers that no row
    of the region has any more; empty unless a major compaction has proven it.
    """

    region: str
    state_ms: int
    ended_ms: int
    dropped_count: int
    inverted_count: int
    cleared: frozenset[int]

    def to_bytes(self) -> bytes:
        """The content of the file. Regions write it; this is for tests."""
        counts = (self.state_ms, self.ended_ms, self.dropped_count, self.inverted_count)
        body = _text(self.region) + _RECORD.pack(*counts) + _pointers(self.cleared)
        return _framed(_RECORD_MAGIC, body)

    @classmethod
    def from_bytes(cls, data: bytes) -> "RegionRecord":
        """Raises: UnreadableRecordError."""
        body = _body(_RECORD_MAGIC, data)
        try:
            (size,) = _SIZE.unpack_from(body)
            region = body[_SIZE.size : _SIZE.size + size].decode("ascii")
            counts = _RECORD.unpack_from(body, _SIZE.size + size)
            at = _SIZE.size + size + _RECORD.size
            (count,) = _COUNT.unpack_from(body, at)
            cleared = frozenset(
                pointer for (pointer,) in _POINTER.iter_unpack(body[at + _COUNT.size :])
            )
        except (struct.error, UnicodeDecodeError) as error:
            raise UnreadableRecordError(f"it is cut off or not of this format: {error}") from None
        if len(cleared) != count:
            raise UnreadableRecordError(f"it says {count} pointers and has {len(cleared)}")
        state_ms, ended_ms, dropped, inverted = counts
        return cls(
            region=region,
            state_ms=state_ms,
            ended_ms=ended_ms,
            dropped_count=dropped,
            inverted_count=inverted,
            cleared=cleared,
        )


def pack_state(topics: Mapping[bytes, TopicRule], state: RetentionState) -> bytes:
    """The content of the file; topics by the prefix of their keys. Takes time in proportion to the
    topics."""
    body = b"".join(
        (
            _TIMES.pack(state.now_ms, state.longest_transaction_ms),
            _COUNT.pack(len(topics)),
            *(_topic(name, rule) for name, rule in sorted(topics.items())),
            _pointers(state.in_progress),
            _pointers(state.invalid),
        )
    )
    return _framed(_STATE_MAGIC, body)


def state_time_ms(data: bytes) -> int:
    """The time of a state, in ms. Raises: UnreadableRecordError."""
    body = _body(_STATE_MAGIC, data)
    if len(body) < _TIMES.size:
        raise UnreadableRecordError("it is cut off")
    now_ms, _ = _TIMES.unpack_from(body)
    return int(now_ms)


def cleared_everywhere(regions: Iterable[str], records: Iterable[RegionRecord]) -> frozenset[int]:
    """The pointers that all regions have cleared; none while a region has no record."""
    by_region = {record.region: record.cleared for record in records}
    proven = [by_region.get(region, frozenset()) for region in regions]
    return frozenset.intersection(*proven) if proven else frozenset()


def _topic(name: bytes, rule: TopicRule) -> bytes:
    return _SIZE.pack(len(name)) + name + _RULE.pack(rule.generation, rule.ttl_s, *rule.log_start)


def _text(text: str) -> bytes:
    encoded = text.encode("ascii")
    return _SIZE.pack(len(encoded)) + encoded


def _pointers(pointers: Collection[int]) -> bytes:
    return _COUNT.pack(len(pointers)) + b"".join(map(_POINTER.pack, sorted(pointers)))


def _framed(magic: bytes, body: bytes) -> bytes:
    return _HEAD.pack(magic, VERSION, crc32(body)) + body


def _body(magic: bytes, data: bytes) -> bytes:
    if len(data) < _HEAD.size:
        raise UnreadableRecordError(f"it has {len(data)} bytes, which is too short for any")
    found, version, expected = _HEAD.unpack_from(data)
    if (found, version) != (magic, VERSION):
        raise UnreadableRecordError(f"it begins with {data[:10].hex()}")
    body = data[_HEAD.size :]
    if crc32(body) != expected:
        raise UnreadableRecordError("its checksum does not match")
    return body


class RegionObservers:
    """Publishes states to the region observers, and reads their records. Lives on the event loop;
    files are read and written in threads."""

    def __init__(
        self, directory: Path, store: OpenStore, state: StoreState, committer: WriteQueue
    ) -> None:
        self._directory = directory
        self._store = store
        self._state = state
        self._committer = committer
        self._in_thread = store.in_thread_read
        self._cleared: frozenset[int] = frozenset()

    async def publish_state(self, topics: Mapping[bytes, TopicRule], state: RetentionState) -> None:
        """Let the regions remove rows by this state, and read which pointers they have cleared. The
        topics are by the prefix of their keys.

        Raises:
            UnavailableError (its kinds): the store can't be read or written now.
        """
        # First the store: once a region server has the state, it removes rows, and no later run of
        # this server may show the rows around them.
        self._state.metadata = replace(self._state.metadata, handed_ms=state.now_ms)
        await self._committer.submit(Write(WriteBatch.force, internal=True))
        try:
            await self._in_thread(partial(_write, self._directory, topics, state))
        except OSError as error:
            log.warning("region observers get no newer state: %s", error)
        await self._look(now_ms=state.now_ms)

    def has_cleared(self, pointer: int) -> bool:
        """Whether no row in any region had this invalid pointer when the records were last read."""
        return pointer in self._cleared

    async def _look(self, *, now_ms: int) -> None:
        regions = await self._store.read(_regions)
        records = await self._in_thread(
            lambda: list(_records(self._directory / RECORDS, regions, now_ms=now_ms))
        )
        self._cleared = cleared_everywhere(regions, records)


def _write(directory: Path, topics: Mapping[bytes, TopicRule], state: RetentionState) -> None:
    make_directory(directory / RECORDS)
    # The region servers may run as another user. The file has no payload.
    write_file(directory / STATE_NAME, pack_state(topics, state), mode=0o644)


def _regions(store: Store) -> frozenset[str]:
    engine = store.engine
    return frozenset(engine.message_regions()) if isinstance(engine, HasRegions) else frozenset()


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
