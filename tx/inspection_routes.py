"""What an operator sees of transactions: the changes of one, and the snapshot files (protocol
§5.5).

The files can be read while the service is down or stopped: they show why.
"""

from functools import partial
from operator import attrgetter
from pathlib import Path

from kernel.event_loop import InThread
from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_query
from tuff.protocol import operations
from tuff.protocol.errors import BadRequestError, NotFoundError
from tuff.protocol.json_bodies import payload_to_json, pointer_to_json, shown
from tx.file_headers import DamagedFilesError, FileInfo, FileKind, file_infos
from tx.outcomes import OpenTransaction, Outcome, ended_error
from tx.routes import pointer_of, while_running
from tx.service import TransactionManager
from tx.snapshot_file import read_snapshot
from tx.state import StateImage
from tx.transaction_principals import named_change

CHANGES_COUNT_MAX = 1_000  # changes of one reply
# Bytes of a snapshot file that is decoded for a reply; a larger one takes seconds of the processor.
SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024


def listed(directory: Path) -> list[FileInfo]:
    """The snapshot files of a directory, by sequence number, the newest first, and those that can't
    be read behind them. Blocks."""
    found = (each for each in file_infos(directory) if each.kind is FileKind.SNAPSHOT)
    return sorted(found, key=attrgetter("sequence"), reverse=True)


def read_content(directory: Path, name: str) -> tuple[FileInfo, StateImage]:
    """A snapshot file, and the state in it. Blocks.

    Raises:
        NotFoundError: there is none of this name, or it is damaged.
        BadRequestError: it is too large.
    """
    info = next((each for each in listed(directory) if each.path.name == name), None)
    if info is None:
        raise NotFoundError(
            f"there is no snapshot file {shown(name)}; {operations.LIST_SNAPSHOT_FILES} lists them"
        )
    if info.size_bytes > SNAPSHOT_BYTES_MAX:
        raise BadRequestError(
            f"{name} has {info.size_bytes} bytes, and the server shows files of up to "
            f"{SNAPSHOT_BYTES_MAX}; read it with `tuff snapshot show`"
        )
    try:
        _, image = read_snapshot(name, (directory / name).read_bytes())
    except DamagedFilesError as error:
        raise NotFoundError(f"the snapshot can't be read: {error}") from None
    except FileNotFoundError:
        raise NotFoundError(f"{name} was removed meanwhile; newer snapshots replace it") from None
    return info, image


def routes(manager: TransactionManager, directory: Path, in_thread: InThread) -> list[Route]:
    """The HTTP routes of the snapshot files in a directory, which are read in a thread, and of the
    changes of a transaction."""

    async def snapshots(request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await in_thread(partial(listed, directory))
        return json_reply({"files": [_file_body(each) for each in found]})

    async def snapshot(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return await in_thread(partial(_content_reply, directory, request.parameters["file"]))

    async def changes(request: Request) -> Reply:
        read_query(request.query, parameters=())
        found = await manager.runner.outcome(pointer_of(request))
        if isinstance(found, Outcome):
            raise ended_error(found)
        return json_reply(_changes_body(found))

    return [
        Route(operations.LIST_SNAPSHOT_FILES, snapshots),
        Route(operations.GET_SNAPSHOT_FILE, snapshot),
        Route(operations.GET_CHANGES, while_running(manager, changes)),
    ]


def _changes_body(opened: OpenTransaction) -> dict[str, object]:
    changes, conflict = sorted(map(named_change, opened.changes or ())), opened.conflict
    return {
        "count": len(changes),
        "changes": [payload_to_json(each) for each in changes[:CHANGES_COUNT_MAX]],
        "conflictingTransaction": None if conflict is None else pointer_to_json(conflict.committer),
        "conflictingKey": (
            None if conflict is None else payload_to_json(named_change(conflict.key))
        ),
    }


def _file_body(info: FileInfo) -> dict[str, object]:
    header = info.header
    return {
        "file": info.path.name,
        "bytes": info.size_bytes,
        "createdAt": None if header is None else header.created_ms,
        "lsn": None if header is None else header.lsn,
        "damage": None if info.damage is None else str(info.damage),
    }


def _content_reply(directory: Path, name: str) -> Reply:
    """Made in the thread: a state may have millions of pointers."""
    info, image = read_content(directory, name)
    view = image.view
    body = {
        **_file_body(info),
        "readPointer": pointer_to_json(view.read_pointer),
        "writePointer": pointer_to_json(image.last_pointer),
        "inProgress": list(map(pointer_to_json, view.in_progress)),
        "invalids": list(map(pointer_to_json, view.invalid)),
        "open": [
            {
                "transactionId": pointer_to_json(each.transaction_id),
                "state": each.state,
                "type": each.transaction.type.value,
                "client": each.client,
                "startedAt": each.started_at_ms,
                "expiresAt": each.expires_at_ms,
            }
            for each in image.open
        ],
        "outcomeCount": len(image.outcomes),
        "sinkCount": len(image.sinks),
    }
    return json_reply(body)
