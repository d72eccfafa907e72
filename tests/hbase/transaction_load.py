"""Transactions while parts of HBase fail. Each publishes three messages, and commits or aborts. A
reader of committed messages must see all three messages of a committed transaction together, and no
others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tests.http.calls import TRANSACTIONS, Topic, Tx
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess

PARTS = 3  # messages of one transaction, in two publishes
TIMEOUT_S = 20  # of a transaction; one that never ends holds readers back for no longer
DECIDED = {"committed", "aborted", "invalid"}
WITHIN_S = 120.0
PAGE = 999  # messages


@dataclass(slots=True)
class Attempt:
    """One transaction, with the answers that its client got."""

    number: int
    tx: Tx
    is_committed: bool = False  # by the reply to its commit
    was_commit_sent: bool = False
    written: int = 0  # acknowledged messages


def parts_of(number: int) -> list[str]:
    """The messages of a transaction."""
    return [f"{number}.{part}" for part in range(PARTS)]


class TransactionLoad:
    """Runs transactions, and reads committed messages."""

    def __init__(self, server: ServerProcess) -> None:
        self._clients = [Client(server.port, timeout_s=WITHIN_S, is_checked=False) for _ in "wr"]
        self._topic, self._read = (Topic(each, "default", "transactions") for each in self._clients)
        self._over = threading.Event()
        self._attempts: list[Attempt] = []
        self._seen: list[str] = []
        self._early: list[str] = []
        self._next: dict[str, object] = {}
        self._threads = [threading.Thread(target=work) for work in (self._transact, self._follow)]
        ok(self._topic.create({}))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run transactions within the block. The results are complete after it."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()
        self._read_on()

    def _read_on(self) -> None:
        self._states = {attempt.number: self._state(attempt) for attempt in self._attempts}
        until(lambda: not self._page(), within_s=WITHIN_S, what="the end of the topic")
        for client in self._clients:
            client.close()

    def check(self) -> None:
        """Replies, outcomes on the server, and the messages of the reader agree."""
        assert self._early == []
        seen = [int(first.split(".")[0]) for first in self._seen[::PARTS]]
        assert seen == sorted(set(seen))
        assert self._seen == [each for number in seen for each in parts_of(number)]
        for attempt in self._attempts:
            state = self._states[attempt.number]
            assert state == "committed" or not attempt.is_committed, attempt
            assert state != "committed" or attempt.was_commit_sent, attempt
            whole = attempt.written == PARTS and state == "committed"
            assert (attempt.number in seen) == whole, (attempt, state)
        assert any(attempt.is_committed for attempt in self._attempts)
        assert "aborted" in self._states.values()

    def _transact(self) -> None:
        for number, commits in enumerate(cycle((True, False)), 1):
            if self._over.wait(0.02):
                return
            reply = self._topic.client.post(TRANSACTIONS, {"timeout": TIMEOUT_S})
            if reply.status == 201:
                attempt = Attempt(number, Tx(self._topic.client, reply.json))
                self._attempts.append(attempt)
                self._run(attempt, commits=commits)

    def _run(self, attempt: Attempt, *, commits: bool) -> None:
        parts = parts_of(attempt.number)
        pointer = attempt.tx.object["writePointer"]
        for some in (parts[:1], parts[1:]):
            if self._topic.publish(*some, tx=pointer).status != 200:
                break
            attempt.written += len(some)
        if commits and attempt.written == PARTS:
            attempt.was_commit_sent = True
            attempt.is_committed = attempt.tx.commit().status == 200
        else:
            attempt.tx.abort()

    def _follow(self) -> None:
        while not self._over.wait(0.02):
            self._page()

    def _page(self) -> bool:
        """Read one page of committed messages. Returns whether there may be more."""
        reply = self._read.poll({**self._next, "limit": PAGE}, isolation="committed")
        if reply.status != 200:
            return True
        found: list[Any] = reply.json
        sent = {attempt.number for attempt in self._attempts if attempt.was_commit_sent}
        for message in found:
            if int(message["payload"].split(".")[0]) not in sent:
                self._early.append(message["payload"])
            self._seen.append(message["payload"])
        if found:
            self._next = {"startFrom": found[-1]["id"], "inclusive": False}
        return bool(found)

    def _state(self, attempt: Attempt) -> str:
        """The outcome of a transaction, once it is decided."""
        found = ""

        def is_decided() -> bool:
            nonlocal found
            reply = attempt.tx.outcome()
            found = reply.json["state"] if reply.status == 200 else ""
            return found in DECIDED

        until(is_decided, within_s=WITHIN_S, what="a transaction to be decided")
        return found
