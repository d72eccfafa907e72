"""`tuff explain`: why a reader receives a message, or does not (protocol §3.14)."""

from collections.abc import Mapping
from pathlib import Path

import click

from tuff.launch import DAMAGE, Row, ServerCommandError, inspect, server_rows
from tuff.protocol.errors import BadRequestError, DamagedRecordError
from tuff.protocol.ids import TopicId
from tuff.protocol.json_bodies import (
    parse_json,
    transaction_from_json,
)
from tuff.protocol.json_objects import from_json
from tuff.protocol.requests import Isolation
from tuff.protocol.transaction import Transaction, TransactionStatus
from tuff.replies import Explanation, MessageLostByGroup
from tuff_cli.fsck_and_backup import SNAPSHOTS
from tuff_cli.options import (
    TRANSACTION,
    PathType,
    Target,
    output_options,
    pass_target,
    server_options,
    topic_of,
)
from tuff_cli.output import Result, field_table, moment, print_result

SENTENCE_LENGTH_MAX = 2_000  # characters; a reason is not cut off
_READER_POINTER = 0  # of a reader outside of a transaction; no row has it

_SNAPSHOT = click.option(
    "--snapshot",
    type=PathType(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The reader reads in FILE: a transaction as JSON, or a snapshot file of the server.",
)
_DATA = click.option(
    "--data",
    type=PathType(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Ask no server: read the data directory of a stopped one.",
)


@click.command()
@click.argument("topic", type=topic_of)
@click.argument("id")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "all"]),
    help="The isolation of the reader. [default: committed]",
)
@click.option("--tx", type=TRANSACTION, metavar="ID", help="The reader reads in transaction ID.")
@_SNAPSHOT
@_DATA
@SNAPSHOTS
@server_options
@output_options
@pass_target
def explain(
    target: Target,
    *,
    topic: TopicId,
    id: str,
    isolation: str | None,
    tx: int | None,
    snapshot: Path | None,
    data: Path | None,
    snapshots: Path | None,
    as_json: bool,
) -> None:
    """Say whether a reader of TOPIC receives the message ID, and why.

    ID is a message id (40 hex digits), or the id of a delayed message (36).

    Exit code 0: there is an answer, visible or not. 1: the server refused the request. 2: an
    option, the id or the directory is wrong, or a server uses the directory. 3: the server can't
    be reached.
    """
    if snapshots is not None and data is None:
        raise click.UsageError("--snapshots needs --data")
    _require_one_reader(isolation, tx, snapshot, data)
    level = None if isolation is None else Isolation(isolation)
    if data is not None:
        found = _explained_in(data, snapshots, topic, id, level, tx)
    else:
        read_in = tx if snapshot is None else _snapshot_in(snapshot)
        with target.client() as client:
            found = client.explain(topic, id, isolation=level, transaction=read_in)
    title = f"{id} is {'visible' if found.is_visible else 'not visible'}"
    table = field_table(_fields(found), title=title, cell_length_max=SENTENCE_LENGTH_MAX)
    print_result(Result(json=found, table=table), as_json=as_json)


def _require_one_reader(
    isolation: str | None, tx: int | None, snapshot: Path | None, data: Path | None
) -> None:
    if sum(given is not None for given in (isolation, tx, snapshot)) > 1:
        raise click.UsageError("give at most one of --isolation, --tx and --snapshot")
    if data is not None and snapshot is not None:
        raise click.UsageError("--snapshot needs a server; with --data give --tx or --isolation")


def _explained_in(
    data: Path,
    snapshots: Path | None,
    topic: TopicId,
    id: str,
    isolation: Isolation | None,
    tx: int | None,
) -> Explanation:
    """Raises: BadRequestError: a server uses the directory, or it can't be read."""
    reader = ["--isolation", (isolation or Isolation.COMMITTED).value] if tx is None else []
    of_tx = [] if tx is None else ["--tx", str(tx), "--isolation", "all"]
    beside = [] if snapshots is None else ["--snapshots", str(snapshots)]
    words = [str(data), *beside, topic.namespace, topic.name, id, *reader, *of_tx]
    try:
        (row,) = server_rows(["explain", *words])
    except ServerCommandError as error:
        raise BadRequestError(str(error), code="command_refused") from None
    return from_json(Explanation, row)


def _fields(found: Explanation) -> Mapping[str, object]:
    fields: dict[str, object] = {
        "topic": found.topic,
        "reason": found.reason,
        "why": found.detail,
        "what to do": found.advice,
    }
    if found.blocked_by is not None:
        fields["waits for"] = found.blocked_by
    if found.lost_by:
        fields["lost by"] = "; ".join(map(_lost_by, found.lost_by))
    status = found.transaction
    if status is not None:
        fields["transaction"] = status.transaction_id
        fields["state"] = status.state if status.reason is None else _with_reason(status)
        fields["client"] = status.client
        fields["started"] = moment(status.started_at_ms)
        fields["ended"] = None if status.ended_at_ms is None else moment(status.ended_at_ms)
    return fields


def _lost_by(loss: MessageLostByGroup) -> str:
    gone = "expired" if loss.cause == "expired" else "was truncated"
    return (
        f"the {loss.kind} group {loss.namespace}:{loss.group}, which had read up to "
        f"{loss.after.hex()} when the message {gone}"
    )


def _with_reason(status: TransactionStatus) -> str:
    return f"{status.state} ({status.reason})"


def _snapshot_in(file: Path) -> Transaction:
    """The snapshot of a transaction as JSON, or of a reader at the time of a snapshot file of the
    server. Raises: BadRequestError (its kinds), DamagedRecordError."""
    if file.read_bytes()[:1] in (b"{", b'"'):
        return transaction_from_json(_only_snapshot(parse_json(file.read_bytes())))
    numbers: Row = {}
    for row in inspect("snapshot", str(file)):
        if row["kind"] == DAMAGE:
            reason = f"{file.name} is damaged: {row['reason']}"
            raise DamagedRecordError(reason, code="damaged_file")
        if row["kind"] == "numbers":
            numbers = row
    in_progress = _pointers(numbers, "in_progress")
    return Transaction(
        transaction_id=_READER_POINTER,
        read_pointer=int(str(numbers["read_pointer"])),
        write_pointer=_READER_POINTER,
        invalids=_pointers(numbers, "invalid"),
        in_progress=in_progress,
    )


def _only_snapshot(value: object) -> object:
    """A transaction as `POST /v1/transactions` answers it, less what is no part of a snapshot."""
    if not isinstance(value, dict):
        return value
    if "encoded" in value:
        return value["encoded"]
    return {name: each for name, each in value.items() if name in _MEMBERS}


_MEMBERS = frozenset(
    {
        "transactionId", "readPointer", "writePointer", "invalids", "inProgress",
        "firstShortInProgress", "type", "checkpointWritePointers", "visibilityLevel",
    }
)  # fmt: skip


def _pointers(numbers: Row, name: str) -> tuple[int, ...]:
    found = numbers[name]
    if not isinstance(found, list):
        raise BadRequestError(f"the snapshot file has no list {name}")
    return tuple(int(each) for each in found)
