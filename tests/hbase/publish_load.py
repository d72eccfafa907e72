"""A publisher and a reader beside a failing HBase, and what must hold of what they were told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.hbase.transaction_load import Undecided
from tests.http.client import Client, Reply, ok, until
from tests.http.process import ServerProcess

TOPIC = "/v1/namespaces/default/topics/load"
WITHIN_S = 120.0  # seconds for anything to come back; a busy machine takes its time
NOT_THERE = "nothing was written"  # what a refusal says of a message that is proven not to be there
PAGE = 1_000


class Load:
    """Publishes one message after the other, each with a number of its own, whatever is answered;
    and reads from the beginning on, page by page."""

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
        self.seen: list[int] = []  # of who read it all at the end
        self.followed: list[int] = []  # of who read all along
        ok(self._client.put(TOPIC, {}))

    @contextmanager
    def running(self) -> Iterator["Load"]:
        """While this lasts; the account is right afterwards."""
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
        """Wait until so many more were acknowledged."""
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
        """Nothing acknowledged is lost or out of order; nothing refused for sure is there; nothing
        is there twice; and whoever read all along saw what there is to see."""
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
        if NOT_THERE in detail:
            self.refused.add(self._number)
        self._over.wait(0.02)  # nobody hammers a server that is down

    def _read(self) -> None:
        while not self._over.is_set():
            self._read_page()
            self._over.wait(0.02)

    def _read_page(self) -> bool:
        """Read one page; whether there may be more."""
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
    """A load that runs, with transactions beside it; both are checked when it is over."""
    undecided = Undecided(server)
    with Load(server).running() as load, undecided.running():
        load.goes_on()
        yield load
        load.goes_on()
    load.check()
    undecided.check()
