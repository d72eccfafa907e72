"""Downloads a backup of a running server to a file; a failed download leaves no file."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from errno import EEXIST
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from ssl import SSLError
from typing import BinaryIO
from urllib.parse import urlsplit

from tuff.address import Address
from tuff.calls import Call, Request, Response
from tuff.disk.archive import ArchiveError, NewerArchiveError, read_parts
from tuff.disk.files import sync_directory
from tuff.protocol.errors import DamagedRecordError

PART_SUFFIX = ".part"  # of a file that is still being received
PIECE_BYTES = 1 << 20  # bytes held in memory
PIECE_S_MAX = 60.0  # seconds until the next piece; packing the transactions of a large state first
CONNECT_S_MAX = 5.0

_REQUEST = Request(method="GET", path="/v1/backup", is_read=True)
_REFUSAL: Call[None] = Call(_REQUEST, lambda _: None)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What a backup consists of."""

    part_count: int
    size_bytes: int


def download(url: str, target: Path, *, token: str | None = None) -> Downloaded:
    """Receive all that the server at `url` holds at this moment, and read it again from the disk.

    Raises:
        ValueError: `url` or `token` is not valid.
        FileExistsError: there is something at `target` already.
        ConnectionLostError: the server can't be reached or trusted, or was lost on the way.
        DamagedRecordError: what came is no whole backup; it says why.
        TuffError: its kind for what the server refused.
        OSError: the file can't be written.
    """
    address = Address(url=url, timeout_s=PIECE_S_MAX, connect_timeout_s=CONNECT_S_MAX, token=token)
    if target.exists():
        raise FileExistsError(EEXIST, os.strerror(EEXIST), str(target))
    part = target.with_name(target.name + PART_SUFFIX)
    try:
        with part.open("w+b") as file:
            for piece in _pieces(address):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            downloaded = _verified(file, target)
        part.replace(target)
        sync_directory(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return downloaded


def _verified(file: BinaryIO, target: Path) -> Downloaded:
    try:
        count = sum(1 for _ in read_parts(file))
    except NewerArchiveError as error:
        raise DamagedRecordError(
            f"what the server sent can't be read here, and {target} was not made: {error}; use a "
            "`tuff` of the server's version",
            code="damaged_backup",
        ) from None
    except ArchiveError as error:
        raise DamagedRecordError(
            f"what the server sent is no whole backup, and {target} was not made: {error}",
            code="damaged_backup",
        ) from None
    return Downloaded(count, file.tell())


def _pieces(address: Address) -> Iterator[bytes]:
    """What the server sends, as it comes."""
    parts = urlsplit(address.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=address.connect_timeout_s)
    with closing(connection):
        try:
            connection.connect()
        except SSLError as error:
            raise address.not_trusted(error) from error
        except OSError as error:
            raise address.unreachable(error) from error
        connection.sock.settimeout(address.timeout_s)
        try:
            path = parts.path.rstrip("/") + _REQUEST.path
            connection.request(_REQUEST.method, path, headers=address.headers(_REQUEST))
            reply = connection.getresponse()
            if reply.status != HTTPStatus.OK:
                address.answer(_REFUSAL, Response(reply.status, {}, reply.read()))
            while piece := reply.read(PIECE_BYTES):
                yield piece
        except (OSError, HTTPException) as error:
            raise address.lost(_REQUEST, error, was_sent=True) from error
