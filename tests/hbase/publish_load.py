"""A publisher and a reader that run while parts of HBase fail, and the checks of their results."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.hbase.transaction_load import TransactionLoad
from tests.http.client import Client, Reply, ok, until
from tests.http.process import ServerProcess

TOPIC = "/v1/namespaces/default/topics/load"
WITHIN_S = 120.0  # seconds for any recovery, on a busy machine
NOT_WRITTEN = "nothing was written"  # in a refusal if the message is certainly not stored
PAGE = 1_000


class Load:
    """Publishes numbered messages, one after the other, also after refusals; and reads the topic
    from its beginning, page by page."""

    def __init__(self, server: ServerProcess) -> None:
        self._client = Client(server.port, timeout_s=WITHIN_S, is_checked=False)
        self._reader = Client(server.port, timeout_s=WITHIN_S, is_checked=False)
        self._clients = [self._client, self._reader]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._read)]
        self._number = 0
        self._next: str | None = None
        self.acknowledged: list[int] = []
        self.refused: set[int] = set()
        self.refusals: list[str] = []
        self.seen: list[int] = []  # read after the end of the load
        self.followed: list[int] = []  # read during the load
        ok(self._client.put(TOPIC, {}))

    @contextmanager
    def running(self) -> Iterator["Load"]:
        """Publish and read within the block. The results are complete after it."""
        for thread in self._threads:
            thread.start()
        try:
            try:
                yield self
            finally:
                self._over.set()
                for thread in self._threads:
                    thread.join()
            self._read_on()
            followed, self.seen, self._next = self.seen, [], None
            self._read_on()
            self.followed = followed
        finally:
            for client in self._clients:
                client.close()

    def goes_on(self, count: int = 20) -> None:
        """Wait until this many more messages are acknowledged."""
        enough = len(self.acknowledged) + count
        until(
            lambda: len(self.acknowledged) >= enough or not self._is_alive(),
            within_s=WITHIN_S,
            what="publishes to go on",
        )
        assert self._is_alive()

    def is_refused(self, saying: str) -> None:
        """Wait until a publish is refused with these words."""
        try:
            until(
                lambda: any(saying in each for each in self.refusals) or not self._is_alive(),
                within_s=WITHIN_S,
                what=f"a refusal that says {saying!r}",
            )
        except AssertionError as error:
            error.add_note(f"{len(self.acknowledged)} acknowledged; the rest: {self.refusals[-3:]}")
            raise
        assert self._is_alive()

    def check(self) -> None:
        """No acknowledged message is lost or out of order, no message that is certainly not stored
        is there, none is there twice, and the reader during the load saw all messages."""
        assert len(set(self.seen)) == len(self.seen)
        assert self.seen == sorted(self.seen)
        assert set(self.acknowledged) - set(self.seen) == set()
        assert self.refused & set(self.seen) == set()
        assert self.acknowledged
        assert self.followed == self.seen

    def read_from(self, server: ServerProcess) -> None:
        """Read the rest from another server, which took over."""
        self._reader = Client(server.port, timeout_s=WITHIN_S, is_checked=False)
        self._clients.append(self._reader)

    def _is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def _publish(self) -> None:
        while not self._over.is_set():
            self._number += 1
            reply = self._client.post(f"{TOPIC}/publish", {"messages": [str(self._number)]})
            if reply.status == 200:
                self.acknowledged.append(self._number)
            else:
                self._note(reply)

    def _note(self, reply: Reply) -> None:
        assert reply.status == 503, reply
        detail = reply.json["detail"]
        assert "Traceback" not in detail
        assert "\n" not in detail
        self.refusals.append(detail)
        if NOT_WRITTEN in detail:
            self.refused.add(self._number)
        self._over.wait(0.02)  # as a client does whose server is down

    def _read(self) -> None:
        while not self._over.is_set():
            self._read_page()
            self._over.wait(0.02)

    def _read_page(self) -> bool:
        """Read one page. Returns whether there may be more."""
        start = {} if self._next is None else {"startFrom": self._next, "inclusive": False}
        reply = self._reader.post(f"{TOPIC}/poll", {**start, "limit": PAGE})
        if reply.status != 200:
            return True
        found = reply.json
        self.seen += [int(message["payload"]) for message in found]
        if found:
            self._next = found[-1]["id"]
        return len(found) == PAGE

    def _read_on(self) -> None:
        until(lambda: not self._read_page(), within_s=WITHIN_S, what="the end of the topic")


@contextmanager
def loaded(server: ServerProcess) -> Iterator[Load]:
    """Load and transactions that run within the block, and are checked after it."""
    transactions = TransactionLoad(server)
    with Load(server).running() as load, transactions.running():
        load.goes_on()
        yield load
        load.goes_on()
    load.check()
    transactions.check()
