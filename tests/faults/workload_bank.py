"""Workload: a process in which eight threads transfer money and one audits, until it is killed.

python -m tests.faults.workload_bank URL TABLE RUN

It prints a line for each result:

    done NAME            the transfer was committed
    failed NAME          it was not, and never will be
    doubt NAME POINTER   unknown; the outcome of that transaction can be asked for
    seen                 a snapshot had the right sum
    audited              the balances, transfers and messages of a snapshot agreed
"""

import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from threading import Event, Thread
from traceback import print_exc

import tuff
from tuff.address import TransportName
from tuff.errors import OutcomeUnknownError
from tuff.flows_and_repeated_calls import is_passing

ACCOUNT_COUNT = 100
FIRST_BALANCE = 1_000
TOTAL = ACCOUNT_COUNT * FIRST_BALANCE
AMOUNT_MAX = 50
CLERK_COUNT = 8
AUDIT_EVERY = 20  # snapshots of which only one is compared row by row and message by message
AWAY_S = 0.05  # seconds between two attempts while the server is down
TOPIC = tuff.TopicId("bank", "transfers")
EXIT_WRONG = 3

TRANSFER = b"transfer/"
ACCOUNT = b"account/"


class WrongError(Exception):
    """A snapshot that is not the result of whole transfers."""


def account(number: int) -> bytes:
    return ACCOUNT + b"%03d" % number


def say(line: str) -> None:
    # One write of a short line is never cut by a kill, nor mixed with another thread's.
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def open_accounts(client: tuff.Client, table: tuff.TransactionalTable) -> None:
    client.topics.create(TOPIC)
    with client.transaction(table):
        for number in range(ACCOUNT_COUNT):
            table.put(account(number), b"%d" % FIRST_BALANCE)


def audit(
    table: tuff.TransactionalTable, poll: Callable[..., tuff.Poll], *, names: set[str] | None = None
) -> None:
    """In the current transaction, the balances follow from the transfers, and each transfer has
    one message. The names of the transfers are added to `names`.

    Raises: WrongError.
    """
    rows = dict(table.scan())
    transfers = {
        key.removeprefix(TRANSFER): value for key, value in rows.items() if key.startswith(TRANSFER)
    }
    balances = [int(rows[account(number)]) for number in range(ACCOUNT_COUNT)]
    if balances != replayed(transfers.values()):
        raise WrongError(f"{len(transfers)} transfers do not result in {balances}")
    announced = sorted(messages_of(poll))
    recorded = sorted(b"%s %s" % transfer for transfer in transfers.items())
    if announced != recorded:
        twice = len(announced) - len(set(announced))
        differ = sorted(set(announced) ^ set(recorded))
        raise WrongError(f"{twice} announced twice; rows and messages differ in {differ[:5]}")
    if names is not None:
        names.update(name.decode() for name in transfers)


def replayed(transfers: Iterable[bytes]) -> list[int]:
    balances = [FIRST_BALANCE] * ACCOUNT_COUNT
    for transfer in transfers:
        giver, taker, amount = map(int, transfer.split())
        balances[giver] -= amount
        balances[taker] += amount
    return balances


def messages_of(poll: Callable[..., tuff.Poll]) -> list[bytes]:
    found: list[bytes] = []
    page = poll(TOPIC)
    while True:
        found += [message.payload for message in page]
        if page.caught_up:
            return found
        page = poll(TOPIC, page.next_id, inclusive=False)


class Bank:
    """The table and the client that all threads of the process share."""

    def __init__(self, url: str, directory: str, run: str) -> None:
        # Few retries, so that a restart of the server outlasts them and some outcomes are unknown.
        transport: TransportName = "http" if int(run.removeprefix("run")) % 2 else "auto"
        self._client = tuff.Client(url, client_id=f"bank {run}", retries=1, transport=transport)
        self._table = tuff.TransactionalTable(directory)
        self._run = run

    def work(self) -> None:
        """Transfer and audit until the process is killed."""
        # Rows of transactions of killed processes are removed at the same time.
        tasks: list[Callable[[], None]] = [self._watch, self._tidy]
        tasks += [lambda clerk=clerk: self._serve(clerk) for clerk in range(CLERK_COUNT)]  # type: ignore[misc]  # mypy can't infer a lambda with a default
        for task in tasks:
            Thread(target=_or_exit, args=(task,)).start()

    def _serve(self, clerk: int) -> None:
        chance = random.Random(f"{self._run}/{clerk}")
        for number in count():
            self._attempt(f"{self._run}/{clerk}/{number}", chance)

    def _attempt(self, name: str, chance: random.Random) -> None:
        pointers: list[int] = []
        try:
            self._transfer(name, chance, pointers)
        except OutcomeUnknownError:
            say(f"doubt {name} {pointers[0]}")
        except tuff.errors.TransactionError:
            say(f"failed {name}")
        except tuff.TuffError as error:
            _wait_if_away(error)
            say(f"failed {name}")
        else:
            say(f"done {name}")

    def _transfer(self, name: str, chance: random.Random, pointers: list[int]) -> None:
        giver, taker = chance.sample(range(ACCOUNT_COUNT), 2)
        amount = chance.randint(1, AMOUNT_MAX)
        record = b"%d %d %d" % (giver, taker, amount)
        with self._client.transaction(self._table) as tx:
            pointers.append(tx.transaction.transaction_id)
            tx.publish(TOPIC, b"%s %s" % (name.encode(), record))
            for number, change in ((giver, -amount), (taker, amount)):
                balance = int(self._table.get(account(number)) or b"0")
                self._table.put(account(number), b"%d" % (balance + change))
            self._table.put(TRANSFER + name.encode(), record)

    def _watch(self) -> None:
        for number in count():
            try:
                with self._client.transaction(self._table) as tx:
                    if number % AUDIT_EVERY == 0:
                        audit(self._table, _skipping(tx))
                    self._check_sum()
            except tuff.TuffError as error:
                _wait_if_away(error)
            else:
                say("seen" if number % AUDIT_EVERY else "audited")

    def _check_sum(self) -> None:
        balances = self._table.scan(ACCOUNT, ACCOUNT + b"\xff")
        total = sum(int(value) for _, value in balances)
        if total != TOTAL:
            raise WrongError(f"a snapshot holds {total}, and not {TOTAL}")

    def _tidy(self) -> None:
        try:
            gone = self._table.compact(self._client)
            self._client.transactions.truncate(ids=gone)
        except tuff.TuffError as error:
            _wait_if_away(error)


def _skipping(tx: tuff.TransactionContext) -> Callable[..., tuff.Poll]:
    def poll(topic: tuff.TopicId, start: object = None, **where: object) -> tuff.Poll:
        return tx.poll(topic, start, undecided="skip", **where)  # type: ignore[arg-type]  # as given

    return poll


def _wait_if_away(error: tuff.TuffError) -> None:
    if not (is_passing(error) or isinstance(error, tuff.errors.TransactionError)):
        raise error
    Event().wait(AWAY_S)


def _or_exit(task: Callable[[], None]) -> None:
    try:
        task()
    except BaseException:  # noqa: BLE001 - a thread that ends silently would look like success
        print_exc()
        os._exit(EXIT_WRONG)


def main(arguments: Mapping[str, str]) -> None:
    Bank(arguments["url"], arguments["table"], arguments["run"]).work()


if __name__ == "__main__":
    main(dict(zip(("url", "table", "run"), sys.argv[1:], strict=True)))
