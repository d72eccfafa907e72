"""`tuff tx ls`, `show`, `blockers`, `start`, `renew`, `commit`, `abort`, `invalidate`, `prepared`,
`resolve`, `invalid`, `truncate`: what is in progress, and what blocks readers (protocol §5.2,
§5.4)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import click

from tuff.blocking.client import Client
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.sentences import counted
from tuff.protocol.transaction import TransactionType
from tuff.protocol.values import Member
from tuff.replies import OpenTransaction, Outcome
from tuff.transaction_calls import Resolution
from tuff_cli.options import (
    SECONDS,
    TRANSACTION,
    client_command,
    command_line,
    confirm,
    time_of,
    topic_of,
)
from tuff_cli.output import Result, Table, field_table, moment, seconds

WAITING_COUNT_MAX = 10_000  # messages; no more are counted, since counting reads each of them
POLL_COUNT = 1_000  # messages of one poll

_BLOCKER_COLUMNS = (
    "transaction", "client", "since", "age", "expires in", "lease", "blocks readers",
)  # fmt: skip
_TRANSACTION = click.argument("transaction", type=TRANSACTION)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """How many messages wait for a transaction; `is_cut`: or more."""

    count: Annotated[int, Member("waitingCount")]
    is_cut: Annotated[bool, Member("isCountCut")]

    def text(self) -> str:
        if self.is_cut:
            return f"{self.count:,} or more messages wait"
        return f"{self.count:,} {'message waits' if self.count == 1 else 'messages wait'}"


@click.group()
def tx() -> None:
    """List, show, start and end transactions."""


@tx.command("ls")
@client_command
def list_transactions(client: Client) -> Result:
    """List the transactions in progress."""
    overview = client.transactions.overview()
    now_ms = _now_ms()
    rows = [
        (
            one.transaction_id,
            one.type,
            one.client,
            seconds(now_ms - one.started_at_ms),
            seconds(one.expires_at_ms - now_ms),
            lease_text(one, now_ms=now_ms),
            one.topics,
        )
        for one in overview.in_progress
    ]
    columns = ("transaction", "type", "client", "age", "expires in", "lease", "published to")
    return Result(
        json=overview,
        table=Table(columns, rows, f"{counted(len(rows), 'transaction')} in progress"),
        lines=[
            f"{overview.committing_count} committing, {overview.invalid_count} invalid; "
            f"read pointer {overview.read_pointer}, write pointer {overview.write_pointer}"
        ],
    )


@tx.command()
@_TRANSACTION
@client_command
def show(client: Client, *, transaction: int) -> Result:
    """Show the state or outcome of TRANSACTION: an id, or any of its write pointers."""
    outcome = client.transactions.get(transaction)
    fields = {
        "state": outcome.state,
        "reason": outcome.reason,
        "type": outcome.type,
        "client": outcome.client,
        "started": moment(outcome.started_at_ms),
        "expires": moment(outcome.expires_at_ms),
        "lease": lease_text(outcome, now_ms=_now_ms()),
        "decided by": outcome.database,
        "prepared": moment(outcome.prepared_at_ms),
        "published to": outcome.topics,
    }
    table = field_table(fields, title=f"transaction {outcome.transaction_id}")
    return Result(json=outcome, table=table)


@tx.command()
@click.option(
    "--type",
    "kind",
    type=click.Choice(["short", "long"]),
    default="short",
    help="short: for seconds, checked for conflicts; long: for hours, never checked. "
    "[default: short]",
)
@click.option("--timeout", type=SECONDS, metavar="DURATION", help="Time until it times out.")
@click.option(
    "--lease",
    type=SECONDS,
    metavar="DURATION",
    help="Time until it ends unless renewed.",
)
@click.option("--client", "name", metavar="NAME", help="The name that tx ls shows.")
@client_command
def start(
    client: Client, *, kind: str, timeout: float | None, lease: float | None, name: str | None
) -> Result:
    """Start a transaction, and print its id: for `tuff pub --tx`."""
    started = client.transactions.start(
        TransactionType(kind), timeout=timeout, client=name, lease=lease
    )
    transaction = started.transaction_id
    return replace(_ended(transaction, "in_progress"), lines=[str(transaction)])


@tx.command()
@_TRANSACTION
@client_command
def renew(client: Client, *, transaction: int) -> Result:
    """Restart the lease of TRANSACTION."""
    renewed = client.transactions.renew(transaction)
    return Result(
        json={"transactionId": str(transaction), **to_json(renewed)},
        lines=[f"the lease ends at {moment(renewed.lease_expires_at_ms)}"],
    )


@tx.command()
@_TRANSACTION
@client_command
def commit(client: Client, *, transaction: int) -> Result:
    """Commit TRANSACTION, and make visible what it published."""
    client.transactions.commit(transaction)
    return _ended(transaction, "committed")


@tx.command()
@_TRANSACTION
@client_command
def abort(client: Client, *, transaction: int) -> Result:
    """Roll TRANSACTION back, with what it published.

    You confirm that all its other writes, for example to a database, were undone. If you do not
    know that, use invalidate.
    """
    return _ended(transaction, client.transactions.abort(transaction))


@tx.command()
@_TRANSACTION
@client_command
def invalidate(client: Client, *, transaction: int) -> Result:
    """Roll TRANSACTION back; its writes elsewhere stay invisible to all transactions."""
    client.transactions.invalidate(transaction)
    return _ended(transaction, "invalid")


@tx.command()
@click.option("--database", metavar="NAME", help="Only those that this database decides.")
@client_command
def prepared(client: Client, *, database: str | None) -> Result:
    """List the prepared transactions, which wait for their database's decision."""
    found, now_ms = client.transactions.prepared(database), _now_ms()
    rows = [
        (
            one.transaction_id,
            one.database,
            one.client,
            moment(one.prepared_at_ms),
            seconds(now_ms - one.prepared_at_ms),
            one.topics,
            one.change_count,
            "yes" if one.blocks_readers else "no",
        )
        for one in found
    ]
    columns = (
        "transaction", "database", "client", "prepared", "age", "published to", "changes",
        "blocks readers",
    )  # fmt: skip
    return Result(
        json=found,
        table=Table(columns, rows, f"{counted(len(rows), 'prepared transaction')}"),
    )


@tx.command()
@_TRANSACTION
@click.argument("outcome", type=click.Choice(["commit", "abort"]))
@client_command
def resolve(client: Client, *, transaction: int, outcome: Resolution) -> Result:
    """End the prepared TRANSACTION as its database did.

    Look into the table tuff_commits of the database first: it has a row with this id if the
    database committed. A wrong outcome can't be corrected.
    """
    return _ended(transaction, client.transactions.resolve(transaction, outcome))


@tx.command()
@client_command
def invalid(client: Client) -> Result:
    """List the invalid transactions, which every start of a transaction lists.

    A pointer is prunable once no message carries it.
    """
    found = client.transactions.invalids()
    reason_of = {pointer: reason for reason, those in found.reasons.items() for pointer in those}
    prunable = set(found.prunable)
    rows = [(each, reason_of.get(each), each in prunable) for each in found.invalids]
    title = counted(len(rows), "invalid transaction")
    return Result(json=found, table=Table(("pointer", "reason", "prunable"), rows, title))


@tx.command()
@click.argument("pointers", metavar="[ID]...", type=TRANSACTION, nargs=-1)
@click.option("--prunable", is_flag=True, help="Those that no message carries any more.")
@click.option(
    "--before", type=time_of, metavar="TIME", help="Those started before: ISO 8601, or ms."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def truncate(
    client: Client, *, pointers: tuple[int, ...], prunable: bool, before: int | None, yes: bool
) -> Result:
    """Remove transactions from the invalid list: these IDs, or those of one option.

    First remove what they wrote to other stores, since it becomes visible. Those that a message
    carries are kept.
    """
    if [bool(pointers), prunable, before is not None].count(True) != 1:
        raise click.UsageError("give either IDs, or --prunable, or --before")
    ids = client.transactions.invalids().prunable if prunable else pointers
    which = f"those started before {moment(before)}" if before is not None else f"{len(ids)}"
    if not yes:
        confirm(f"Remove {which} from the invalid list? Their rows in other stores become visible.")
    if before is None:
        done = client.transactions.truncate(ids=ids)
    else:
        done = client.transactions.truncate(before=before)
    kept = f"; {len(done.kept)} kept, since messages carry them" if done.kept else ""
    return Result(
        json=done,
        lines=[f"removed {counted(done.removed_count, 'transaction')} from the invalid list{kept}"],
    )


@dataclass(frozen=True, slots=True)
class _Blocked:
    """The committed readers of one partition; `by` is the transaction that blocks them, None if
    none does."""

    partition: TopicId
    by: int | None
    waiting: _Waiting
    transactions: list[OpenTransaction]

    def members(self) -> dict[str, object]:
        return {
            "blockedBy": None if self.by is None else str(self.by),
            **to_json(self.waiting),
            "transactions": self.transactions,
        }


@tx.command()
@click.argument("topic", type=topic_of)
@client_command
def blockers(client: Client, *, topic: TopicId) -> Result:
    """Show the transactions that block committed readers of TOPIC, and how to end them.

    Of a topic with several partitions all are shown: TOPIC/N for one.
    """
    if topic.number is None:
        info = client.topics.get(topic)
        numbers = sorted({*info.partitions, *info.retired})
        if len(numbers) > 1:
            return _blockers_of_partitions(client, topic, numbers)
    found = _blocked(client, topic)
    table, lines = None, [f"no transaction blocks the readers of {topic}"]
    if found.by is not None:
        title = f"transactions that published to {topic}"
        table, lines = Table(_BLOCKER_COLUMNS, _blocker_rows(found), title), _advice(found)
    return Result(json={"topic": topic, **found.members()}, table=table, lines=lines)


def _blockers_of_partitions(client: Client, topic: TopicId, numbers: Sequence[int]) -> Result:
    found = {number: _blocked(client, topic.partition(number)) for number in numbers}
    held = {number: each for number, each in found.items() if each.by is not None}
    members = [{"partition": number, **each.members()} for number, each in found.items()]
    table, lines = (
        None,
        [f"no transaction blocks the readers of {topic}, in none of its partitions"],
    )
    if held:
        rows = [(number, *row) for number, each in held.items() for row in _blocker_rows(each)]
        title = f"transactions that published to {topic}"
        table = Table(("partition", *_BLOCKER_COLUMNS), rows, title)
        lines = [
            line if line.startswith(" ") else f"partition {number}: {line}"
            for number, each in held.items()
            for line in _advice(each)
        ]
    return Result(json={"topic": topic, "partitions": members}, table=table, lines=lines)


def _blocked(client: Client, partition: TopicId) -> _Blocked:
    offsets = client.offsets(partition, isolation="committed")
    if offsets.blocked_by is None:
        return _Blocked(partition, None, _Waiting(0, is_cut=False), [])
    waiting = _waiting(client, partition, offsets.end)
    found = _publishers(client, partition, first=offsets.blocked_by)
    return _Blocked(partition, offsets.blocked_by, waiting, found)


def _advice(blocked: _Blocked) -> list[str]:
    blocked_by, waiting = blocked.by, blocked.waiting
    databases = [one.database for one in blocked.transactions if one.transaction_id == blocked_by]
    if databases and databases[0] is not None:
        name = databases[0].rpartition(".")[0]  # without the part that tells copies apart
        return [
            f"{waiting.text()}, including its own; it is prepared, and the database "
            f"{databases[0]} decides how it ends. The resolver of that database settles it:",
            f"  {command_line(['tuff', 'sql', 'resolve', 'URL', '--database', name])}",
        ]
    return [
        f"{waiting.text()}, including its own; to end it without its messages:",
        f"  {command_line(['tuff', 'tx', 'invalidate', blocked_by])}",
    ]


def _waiting(client: Client, topic: TopicId, end: MessageId | None) -> _Waiting:
    """Count the messages that a committed reader does not receive yet, up to a bound."""
    count, start = 0, end
    while count < WAITING_COUNT_MAX:
        poll = client.poll(topic, start, inclusive=start is None, limit=POLL_COUNT, isolation="all")
        count += len(poll)
        if poll.caught_up or not poll:
            return _Waiting(count, is_cut=False)
        start = poll.next_id
    return _Waiting(count, is_cut=True)


def _publishers(client: Client, topic: TopicId, *, first: int) -> list[OpenTransaction]:
    """The transactions in progress that published to a topic; the one that blocks it is first."""
    log = str(topic if topic.number else topic.base)  # that of partition 0 has the topic's name
    named = [one for one in client.transactions.overview().in_progress if log in one.topics]
    return sorted(named, key=lambda one: (one.transaction_id != first, one.started_at_ms))


def _blocker_rows(blocked: _Blocked) -> list[tuple[object, ...]]:
    now_ms = _now_ms()
    return [
        (
            one.transaction_id,
            one.client,
            moment(one.started_at_ms),
            seconds(now_ms - one.started_at_ms),
            seconds(one.expires_at_ms - now_ms),
            lease_text(one, now_ms=now_ms),
            "now" if one.transaction_id == blocked.by else "later",
        )
        for one in blocked.transactions
    ]


def _ended(transaction: int, state: str) -> Result:
    return Result(
        json={"transactionId": str(transaction), "state": state},
        lines=[f"transaction {transaction} is {state}"],
    )


def lease_text(value: OpenTransaction | Outcome, *, now_ms: int) -> str | None:
    """The length of the lease, and the time left; None without a lease."""
    if value.lease_s is None or value.lease_expires_at_ms is None:
        return None
    left = seconds(value.lease_expires_at_ms - now_ms)
    return f"{value.lease_s:g} s, {left} left"


def _now_ms() -> int:
    return int(time.time() * 1000)
