"""Clients of a cluster: publishers, consumers and transactions, each a task of one event loop.

Nothing is repeated by the client library, so that each attempt is recorded with what is known about
it. Every client knows all servers, and begins with another one.
"""

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import tuff
from tests.faults.cluster_judge import Counted, Did, Pair, Publish, Read
from tuff.protocol.errors import (
    UnavailableError,
)
from tuff.protocol.requests import IsolationLike

NAMESPACE = "cluster"
CALL_S = 2.5  # seconds until a client gives a call up: a server that hangs must not hide the others
READ_S = 5.0
CONNECT_S = 1.0
AGAIN_S = (0.5, 1.0)  # seconds between two attempts after one that failed
KEY_COUNT = 3  # few, so that transactions conflict
COUNTERS = 6
PAIRED_TOPICS = [f"paired{number}" for number in range(6)]  # with messages of transactions only
PAIRING = 6  # clients that publish pairs
PAIR = "pairs"  # the subject of their attempts
LEADER = "transactions"  # the subject of attempts at the leader
END_WITHIN_S = 60.0
PAGE = 1_000


@dataclass(slots=True)
class Recorded:
    """What the clients did so far. `attempts`: subject, begin, end, and whether acknowledged."""

    publishes: list[Publish] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    attempts: list[tuple[str, float, float, bool]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)  # why attempts failed
    errors: list[tuple[str, float, str]] = field(default_factory=list)  # subject, end, sentence
    failures: list[str] = field(default_factory=list)  # of the program itself

    def failed(self, subject: str, error: tuff.TuffError) -> None:
        self.reasons[error.code] = self.reasons.get(error.code, 0) + 1
        self.errors.append((subject, time.monotonic(), f"{error.code}: {error.detail}"))

    def acknowledged_since(self, begin_s: float) -> set[str]:
        """The subjects with an acknowledged attempt that began at this time or later."""
        found = set()
        for subject, began_s, ended_s, is_done in reversed(self.attempts):
            if ended_s < begin_s:
                break
            if is_done and began_s >= begin_s:
                found.add(subject)
        return found


class Load:
    """The clients, in a thread of their own."""

    def __init__(
        self,
        addresses: Sequence[Sequence[str]],
        *,
        topics: int,
        consumers: int,
        rate_per_s: float,
        seed: int,
        has_pairs: bool = False,
    ) -> None:
        """`addresses`: for each client, those of all servers in its order; `rate_per_s`: publishes
        to each topic; `has_pairs`: transactions publish, each to two topics."""
        self.recorded = Recorded()
        self.topics = [f"t{number:04}" for number in range(topics)]
        self._addresses = addresses
        self._consumers = consumers
        self._pause_s = 1 / rate_per_s
        self._random = random.Random(seed)
        self._has_pairs = has_pairs
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="load")
        self._created = threading.Event()

    def start(self) -> None:
        """Create the topics, and begin."""
        self._thread.start()
        self._created.wait(END_WITHIN_S)

    def stop(self) -> None:
        """End all clients, each after its call."""
        self._is_over = True
        self._thread.join(END_WITHIN_S)
        assert not self._thread.is_alive(), "a client of the cluster hangs"

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.recorded.failures.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._created.set()

    async def _main(self) -> None:
        clients = [
            tuff.AsyncClient(",".join(each), timeout=CALL_S, connect_timeout=CONNECT_S, retries=0)
            for each in self._addresses
        ]
        try:
            await self._create(clients)
            self._created.set()
            work: list[Coroutine[object, object, None]] = []
            for number, topic in enumerate(self.topics):
                work.append(self._publish(clients[number % len(clients)], topic, "p"))
                if number % 3 == 0:
                    work.append(self._publish(clients[(number + 1) % len(clients)], topic, "q"))
                if number < self._consumers:
                    work.append(self._consume(topic, number))
            if self._has_pairs:
                work += [self._pair(clients[n % len(clients)], n) for n in range(PAIRING)]
            work += [
                self._count(clients[number % len(clients)], number) for number in range(COUNTERS)
            ]
            await asyncio.gather(*work)
        finally:
            for client in clients:
                await client.close()

    async def _create(self, clients: Sequence[tuff.AsyncClient]) -> None:
        limit = asyncio.Semaphore(8)

        async def create(client: tuff.AsyncClient, topic: str) -> None:
            async with limit:
                while True:
                    with suppress(tuff.TopicExistsError):
                        try:
                            await client.topics.create(tuff.TopicId(NAMESPACE, topic), ttl=86_400)
                        except (tuff.ConnectionLostError, UnavailableError):
                            await asyncio.sleep(0.2)
                            continue
                    return

        await asyncio.gather(
            *(
                create(clients[n % len(clients)], topic)
                for n, topic in enumerate([*self.topics, *PAIRED_TOPICS])
            )
        )

    async def _publish(self, client: tuff.AsyncClient, topic: str, name: str) -> None:
        number = 0
        while not self._is_over:
            number += 1
            payload = f"{topic} {name}{number}"
            began_s = time.monotonic()
            message_id, did = "", Did.IT
            try:
                published = await client.publish(tuff.TopicId(NAMESPACE, topic), payload)
                message_id = published.ids[0].hex()
            except tuff.TuffError as error:
                did = what_it_did(error)
                self.recorded.failed(topic, error)
                if not is_passing(error):
                    self.recorded.failures.append(f"{payload}: {error!r}")
            ended_s = time.monotonic()
            self.recorded.attempts.append((topic, began_s, ended_s, did is Did.IT))
            self.recorded.publishes.append(
                Publish(
                    topic=topic,
                    publisher=name,
                    payload=payload,
                    began_s=began_s,
                    ended_s=ended_s,
                    did=did,
                    message_id=message_id,
                )
            )
            await self._wait(did is Did.IT)

    async def _wait(self, is_done: bool) -> None:
        mean_s = self._pause_s if is_done else 0.0
        await asyncio.sleep(
            self._random.uniform(0.5, 1.5) * mean_s if is_done else self._random.uniform(*AGAIN_S)
        )

    async def _consume(self, topic: str, number: int) -> None:
        """Follow a topic with polls from the last id, each through another server; now and then
        begin at the start."""
        clients = [
            tuff.AsyncClient(each[0], timeout=READ_S, connect_timeout=CONNECT_S, retries=0)
            for each in self._addresses
        ]
        after = ""
        try:
            while not self._is_over:
                client = self._random.choice(clients)
                after = await self._poll(client, topic, f"c{number}", after)
                if self._random.random() < 0.02:
                    after = ""
                await asyncio.sleep(self._random.uniform(0.2, 1.0))
        finally:
            for client in clients:
                await client.close()

    async def _poll(self, client: tuff.AsyncClient, topic: str, name: str, after: str) -> str:
        began_s = time.monotonic()
        try:
            poll = await client.poll(
                tuff.TopicId(NAMESPACE, topic),
                after or None,
                inclusive=False,
                isolation="all",
                limit=PAGE,
                wait=self._random.choice((0, 0, 0.5)),
            )
        except tuff.TuffError as error:
            self.recorded.failed(f"poll of {topic}", error)
            if not is_passing(error):
                self.recorded.failures.append(f"poll of {topic} after {after}: {error!r}")
            return after
        ids = tuple(message.id.hex() for message in poll)
        self.recorded.reads.append(
            Read(
                topic=topic,
                consumer=name,
                after=after,
                began_s=began_s,
                ids=ids,
                caught_up=poll.caught_up,
            )
        )
        return ids[-1] if ids else after

    async def _pair(self, client: tuff.AsyncClient, number: int) -> None:
        """Transactions that publish to two topics, which mostly have two owners."""
        count = 0
        while not self._is_over:
            count += 1
            first, second = self._random.sample(PAIRED_TOPICS, 2)
            payload, did, began_s = f"pair {number}.{count}", Did.NOTHING, time.monotonic()
            try:
                tx = await client.transactions.start(timeout=60)
                for topic in (first, second):
                    await client.publish(tuff.TopicId(NAMESPACE, topic), payload, transaction=tx)
                did = Did.PERHAPS
                await client.transactions.commit(tx)
                did = Did.IT
            except tuff.errors.TransactionNotInProgressError:
                did = Did.NOTHING
            except tuff.TuffError as error:
                self.recorded.failed(PAIR, error)
                if not is_passing(error):
                    self.recorded.failures.append(f"{payload}: {error!r}")
                if did is Did.PERHAPS:
                    did = what_it_did(error)
            self.recorded.pairs.append(Pair(topics=(first, second), payload=payload, did=did))
            self.recorded.attempts.append((PAIR, began_s, time.monotonic(), did is Did.IT))
            await self._wait(did is Did.IT)

    async def _count(self, client: tuff.AsyncClient, number: int) -> None:
        """Transactions that claim one of a few keys, and commit."""
        while not self._is_over:
            key = f"k{self._random.randrange(KEY_COUNT)}"
            began_s = time.monotonic()
            is_done = await self._transact(client, key)
            self.recorded.attempts.append((LEADER, began_s, time.monotonic(), is_done))
            await self._wait(is_done)

    async def _transact(self, client: tuff.AsyncClient, key: str) -> bool:
        """Whether the leader has answered all calls."""
        try:
            tx = await client.transactions.start(timeout=60)
        except tuff.TuffError as error:
            self.recorded.failed(LEADER, error)
            return False
        started_s = time.monotonic()
        await asyncio.sleep(self._random.uniform(0, 0.3))
        commit_s = time.monotonic()
        did, is_answered = Did.IT, True
        try:
            await client.transactions.can_commit(tx, [key.encode()])
            commit_s = time.monotonic()
            await client.transactions.commit(tx)
        except tuff.TransactionConflictError:
            did = Did.NOTHING
            with suppress(tuff.TuffError):
                await client.transactions.abort(tx)
        except (tuff.errors.TransactionNotInProgressError, tuff.errors.TransactionUnknownError):
            did = Did.NOTHING
        except tuff.TuffError as error:
            self.recorded.failed(LEADER, error)
            did, is_answered = what_it_did(error), False
        self.recorded.counted.append(
            Counted(
                pointer=tx.write_pointer,
                key=key,
                started_s=started_s,
                commit_s=commit_s,
                ended_s=time.monotonic(),
                did=did,
                final="",
            )
        )
        return is_answered


def what_it_did(error: tuff.TuffError) -> Did:
    """What is known about a write that failed with this error."""
    return Did.PERHAPS if error.outcome_unknown else Did.NOTHING


def is_passing(error: tuff.TuffError) -> bool:
    """Whether a cluster may answer this while a fault lasts."""
    return isinstance(
        error, tuff.ConnectionLostError | UnavailableError | tuff.errors.OverloadedError
    )


def read_all(
    client: tuff.Client, topic: str, isolation: IsolationLike = "all"
) -> list[tuple[str, str]]:
    """All messages of a topic, through one server."""
    rows: list[tuple[str, str]] = []
    while True:
        poll = client.poll(
            tuff.TopicId(NAMESPACE, topic),
            rows[-1][0] if rows else None,
            inclusive=False,
            isolation=isolation,
            limit=PAGE,
        )
        rows += [(message.id.hex(), message.payload.decode()) for message in poll]
        if not len(poll) and poll.caught_up:
            return rows


def final_state(client: tuff.Client, pointer: int) -> str:
    """The state of a transaction; "unknown" if the leader does not know it."""
    try:
        return client.transactions.get(pointer).state.name.lower()
    except tuff.errors.TransactionUnknownError:
        return "unknown"
