"""The bytes of a log file (design §4).

    log   := header (edit | proof)*             each a frame, as in tuff.disk.records
    edit  := as in tx.edits
    proof := "TUFFMARK" store_id(16) offset(8) length(8)

A proof says at which byte it stands itself, and up to which length the file was durable before it
was written. Each batch starts with one. So an end that is not whole is a torn tail only beyond what
some proof vouches for; anything before was acknowledged, and is damage.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuff.disk.records import Damage, Frame, pack_frame, read_frame, read_frames
from tx.edits import Edit, decode_edit, encode_edit
from tx.files import FileHeader, FileKind, damaged, read_header, unreadable
from tx.packing import MalformedError

_MARK = b"TUFFMARK"
_PROOF = struct.Struct(">8s16sQQ")
_FRAME_HEAD_SIZE = 8
assert _PROOF.size == 40


@dataclass(frozen=True, slots=True)
class LogContents:
    """What a log holds up to `length`, of which all up to `proven_length` is known to be durable.
    `cut_bytes` of a torn tail follow it. `offsets` says where each edit starts."""

    header: FileHeader
    edits: list[tuple[int, Edit]]
    offsets: list[int]
    length: int
    cut_bytes: int
    proven_length: int


def pack_proof(store_id: str, *, offset: int, length: int) -> bytes:
    """The frame at `offset` that says up to which length the file is durable."""
    return pack_frame(_PROOF.pack(_MARK, bytes.fromhex(store_id), offset, length))


def pack_edit(lsn: int, edit: Edit) -> bytes:
    return pack_frame(encode_edit(lsn, edit))


def pack_edits(edits: Iterable[tuple[int, Edit]]) -> bytes:
    return b"".join(pack_edit(lsn, edit) for lsn, edit in edits)


def read_log(name: str, data: bytes, *, proven_length: int | None = None) -> LogContents:
    """The edits of a log. `proven_length` is what the next log says of it, and then all that
    counts; None for the newest one, which may have a torn tail.

    Raises:
        DamagedFilesError: something that was durable can't be read; NewerFilesError: or was
            written by a newer version.
    """
    if proven_length is not None:
        if len(data) < proven_length:
            raise damaged(
                name, len(data), f"it ends before byte {proven_length}, where it once did"
            )
        data = data[:proven_length]
    header, start = read_header(name, FileKind.LOG, data)
    edits: list[tuple[int, Edit]] = []
    offsets: list[int] = []
    length, proven = start, proven_length or start
    for found in read_frames(data, start):
        if isinstance(found, Damage):
            proven = max(proven, _proven_behind(data, found.offset, header.store_id))
            if found.offset < proven:
                raise damaged(name, found.offset, found.reason)
            break
        proof = _proof(found, header.store_id)
        if proof is None:
            edits.append(_edit(name, found, expected=header.lsn + len(edits)))
            offsets.append(found.start)
        else:
            proven = max(proven, proof)
        length = found.stop
    if length < proven:
        raise damaged(name, length, f"it ends before byte {proven}, where it once did")
    return LogContents(header, edits, offsets, length, len(data) - length, proven)


def is_proof(frame: Frame, store_id: str) -> bool:
    """Whether a frame is a proof, of the place where it stands."""
    return _proof(frame, store_id) is not None


def _edit(name: str, frame: Frame, *, expected: int) -> tuple[int, Edit]:
    try:
        lsn, edit = decode_edit(frame.body)
    except MalformedError as error:
        raise unreadable(name, frame.start, error) from None
    if lsn != expected:
        raise damaged(name, frame.start, f"edit {lsn} stands where edit {expected} should")
    return lsn, edit


def _proof(frame: Frame, store_id: str) -> int | None:
    """The length that a proof vouches for; None for a frame that is no proof of this place."""
    if len(frame.body) != _PROOF.size or not frame.body.startswith(_MARK):
        return None
    _, owner, offset, length = _PROOF.unpack(frame.body)
    if owner.hex() != store_id or offset != frame.start or length > offset:
        return None
    return int(length)


def proofs_behind(data: bytes, damage: int) -> Iterator[Frame]:
    """Every proof from a damaged place on that tells the truth about where it stands: there the
    frames go on, however much the damage hides."""
    at = data.find(_MARK, damage)
    while at >= 0:
        frame = read_frame(data, at - _FRAME_HEAD_SIZE) if at >= _FRAME_HEAD_SIZE else None
        if isinstance(frame, Frame) and len(frame.body) == _PROOF.size:
            _, _, offset, _ = _PROOF.unpack(frame.body)
            if offset == frame.start:
                yield frame
        at = data.find(_MARK, at + 1)


def _proven_behind(data: bytes, damage: int, store_id: str) -> int:
    """What proofs behind a damaged place vouch for, however much of the file it hides."""
    return max((_proof(frame, store_id) or 0 for frame in proofs_behind(data, damage)), default=0)
