"""What the store remembers of itself: its last batch, and the metadata that outlives a restart.

    last batch := flags(1) crc(4) batch_number(8) last_ts(8) last_seq(2) clock_ms(8) [seen_lsn(8)]
    metadata   := flags(1) crc(4) JSON object

Every batch writes the last-batch row. It tells whether that batch is on the disk, which offsets are
taken, and when the server last ran. The first batch writes the metadata row, which is therefore
older than any other row; later batches write it when a member changed.
"""

import json
import struct
from dataclasses import asdict, dataclass, fields

from messaging.storage.rows import (
    BEFORE_ALL,
    DamagedRowError,
    NewerRowError,
    frame,
    newer_flags,
    unframe,
    unframe_plain,
)
from tuff.protocol.ids import Offset

FORMAT = 1  # of all rows of the store; raised for a change that an older server would misread

_MARK = struct.Struct(">QQHQ")
_LSN = struct.Struct(">Q")
assert (_MARK.size, _LSN.size) == (26, 8)

_HAS_SEEN = 1  # a flag of the mark's: the edit of transactions that was durable then follows


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """How far the store was written. `clock_ms` is None before a trusted clock was recorded.
    `seen_lsn` is up to which edit the transactions beside it were durable by then, None where
    nothing is known of them."""

    batch_number: int = 0
    last: Offset = BEFORE_ALL
    clock_ms: int | None = None
    seen_lsn: int | None = None

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        body = _MARK.pack(self.batch_number, *self.last, self.clock_ms or 0)
        if self.seen_lsn is None:
            return frame(key, 0, body)
        return frame(key, _HAS_SEEN, body + _LSN.pack(self.seen_lsn))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "LastBatch":
        """Raises: DamagedRowError."""
        flags, body = unframe(key, value)
        if flags & ~_HAS_SEEN:
            raise newer_flags(flags)
        size = _MARK.size + _LSN.size * bool(flags)
        if len(body) != size:
            raise DamagedRowError(f"this mark has {size} bytes, not {len(body)}")
        number, last_ts, last_seq, clock_ms = _MARK.unpack_from(body)
        return cls(
            batch_number=number,
            last=Offset(last_ts, last_seq),
            clock_ms=clock_ms or None,
            seen_lsn=_LSN.unpack_from(body, _MARK.size)[0] if flags else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMetadata:
    """What must outlive a restart.

    `format` is that of all rows of the store. `store_id` is that of the store, and of the
    transaction files beside it, which are made later; `highest_pointer` is the highest write
    pointer these may have handed out, 0 before they are there; `longest_transaction_ms` is the
    longest life of a transaction that was ever configured, or met; `swept_at_ms` and `swept_with`
    are those of the last retention pass that used a transaction state, and that state's name.
    Region observers may have removed what had expired by `handed_ms`.
    """

    format: int = FORMAT
    store_id: str | None = None
    highest_pointer: int = 0
    longest_transaction_ms: int = 0
    swept_at_ms: int | None = None
    swept_with: str | None = None
    handed_ms: int = 0

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        form = json.dumps(asdict(self), separators=(",", ":"))
        return frame(key, 0, form.encode())

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "StoreMetadata":
        """Raises: DamagedRowError."""
        try:
            found = json.loads(unframe_plain(key, value))
        except ValueError as error:
            raise DamagedRowError(f"no facts row has this body: {error}") from None
        written = found.get("format") if isinstance(found, dict) else None
        if type(written) is not int or written < FORMAT:
            raise DamagedRowError(f"the format is {FORMAT} or higher, not {written!r}")
        if written > FORMAT:
            raise NewerRowError(
                f"a newer version wrote the store in format {written}, and this server reads "
                f"format {FORMAT}"
            )
        unknown = found.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise NewerRowError(f"a newer version wrote it, with the member {min(unknown)!r}")
        return cls(**found)
