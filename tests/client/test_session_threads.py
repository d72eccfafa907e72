"""The blocking client over a session: one connection that threads share."""

import linecache
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, Thread
from types import CodeType, FrameType

import pytest

import tuff
from tests.client.played_session import LIMITS, PlayedSession, playing
from tests.client.proxy import losing
from tests.client.test_fork import output_of
from tests.client.test_interrupts import Interrupter
from tests.http.client import until
from tests.http.process import ServerProcess
from tuff.address import addresses_of
from tuff.blocking import transport
from tuff.protocol.operations import START_TRANSACTION
from tuff.protocol.session_frames import Kind, frame
from tuff.requests_and_responses import Request

THREADS = 16
MANY = 70  # more polls than a session takes
TOPIC = tuff.TopicId("played", "topic")


def waiting_polls(server: ServerProcess) -> int:
    lines = server.client().get("/metrics").body.decode().splitlines()
    return int(
        float(next(line for line in lines if line.startswith("tuff_polls_waiting ")).split()[1])
    )


def test_threads_share_one_session(server: ServerProcess, topic: tuff.TopicId) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url) as client:

        def publish(thread: int) -> list[tuff.MessageId]:
            published = [client.publish(topic, f"{thread} {n}") for n in range(20)]
            return [each.ids[0] for each in published]

        with ThreadPoolExecutor(THREADS) as threads:
            ids = list(threads.map(publish, range(THREADS)))

        read = {each.id: each.payload for each in client.poll(topic)}

    assert losses.sessions == 1
    assert read == {
        id: f"{n} {k}".encode() for n, own in enumerate(ids) for k, id in enumerate(own)
    }


def test_a_poll_that_waits_delays_no_other_thread(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with (
        losing(server.url) as (url, losses),
        tuff.Client(url) as client,
        ThreadPoolExecutor(1) as thread,
    ):
        poll = thread.submit(client.poll, topic, wait=60)
        until(lambda: waiting_polls(server) == 1)
        with client.transaction() as tx:
            tx.publish(topic, "one")

        assert [each.payload for each in poll.result()] == [b"one"]
        assert losses.sessions == 1


def test_polls_above_the_limit_of_a_session_wait_over_http(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with tuff.Client(server.url) as client, ThreadPoolExecutor(MANY) as threads:
        polls = [threads.submit(client.poll, topic, wait=60) for _ in range(MANY)]
        until(lambda: waiting_polls(server) == MANY)
        client.publish(topic, "for all")

        read = [[each.payload for each in poll.result()] for poll in polls]

    assert read == [[b"for all"]] * MANY


def test_replies_in_any_order_reach_their_threads() -> None:
    def backwards(played: PlayedSession) -> None:
        calls = [played.next_call() for _ in range(THREADS)]
        for call_id in reversed(calls):
            played.reply(call_id)

    with (
        playing(backwards) as url,
        tuff.Client(url, retries=0) as client,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        published = list(threads.map(lambda n: client.publish(TOPIC, str(n)), range(THREADS)))

    assert len(published) == THREADS


def test_another_thread_reads_once_the_one_that_read_has_its_reply() -> None:
    def one_by_one(played: PlayedSession) -> None:
        first = played.next_call()  # its thread reads, since no other one waits
        is_read.set()
        second = played.next_call()
        played.reply(first)
        is_answered.wait()
        played.reply(second)

    is_read, is_answered = Event(), Event()
    with (
        playing(one_by_one) as url,
        tuff.Client(url, retries=0) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        first = threads.submit(client.publish, TOPIC, "first")
        is_read.wait()
        second = threads.submit(client.publish, TOPIC, "second")
        first.result()
        is_answered.set()
        second.result()


def test_a_late_reply_is_dropped_and_the_session_goes_on() -> None:
    def late(played: PlayedSession) -> None:
        first, second = played.next_call(), played.next_call()
        played.reply(second)
        third = played.next_call()
        played.reply(first)
        played.reply(third)

    with playing(late) as url, tuff.Client(url, timeout=2, retries=0) as client:
        with ThreadPoolExecutor(1) as thread:
            first = thread.submit(client.publish, TOPIC, "first")
            client.publish(TOPIC, "second")
            error = first.exception()
        client.publish(TOPIC, "third")

    assert isinstance(error, tuff.ConnectionLostError)
    assert error.outcome_unknown


def test_a_server_that_is_gone_is_noticed_and_left() -> None:
    over = Event()

    def silent(played: PlayedSession) -> None:
        over.wait()

    with (
        playing(silent, PlayedSession.answer_all) as url,
        tuff.Client(url, timeout=1, retries=0) as client,
    ):
        with pytest.raises(tuff.ConnectionLostError, match="imed out"):
            client.publish(TOPIC, "into the void")
        over.set()
        client.publish(TOPIC, "over the next session")


def test_a_session_that_ended_while_no_call_waited_loses_no_publish() -> None:
    """Its end is read before the next call is sent on it."""

    def one(played: PlayedSession) -> None:
        played.reply(played.next_call())
        published.wait()  # else one read may bring both
        played.end()
        ended.set()

    published, ended = Event(), Event()
    with (
        playing(one, PlayedSession.answer_all) as url,
        tuff.Client(url, retries=0) as client,
    ):
        client.publish(TOPIC, "one")
        published.set()
        ended.wait()
        client.publish(TOPIC, "over the next session")


def test_a_client_that_sends_still_reads() -> None:
    """A server reads no more while its replies are unread, and no thread read: both waited."""

    def replies_first(played: PlayedSession) -> None:
        played.caller.sendall(frame(int(Kind.REPLY), 2**40, 200, {}, b"x" * 20_000_000))
        played.answer_all()

    with playing(replies_first) as url, tuff.Client(url, timeout=60, retries=0) as client:
        client.publish(TOPIC, b"x" * 10_000_000)


@pytest.mark.parametrize(
    "bad", [b"\x00\x00\x00\x01\xc1", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\x91\xa0"]
)
def test_what_is_no_frame_ends_the_session(bad: bytes) -> None:
    def wrong(played: PlayedSession) -> None:
        played.next_call()
        played.caller.sendall(bad)

    with playing(wrong, PlayedSession.answer_all) as url, tuff.Client(url, retries=0) as client:
        with pytest.raises(tuff.ConnectionLostError):
            client.publish(TOPIC, "lost")
        client.publish(TOPIC, "over the next session")


def test_a_session_that_a_stopping_server_ends_at_once_keeps_no_connection() -> None:
    here, there = socket.socketpair()
    with there:
        received = frame(int(Kind.GREETING), LIMITS) + frame(int(Kind.END), None)

        ended = transport.Session(here, received, within_s=60)

        assert not ended.is_usable()
        assert here.fileno() == -1


def test_a_lost_session_is_lost_for_all_its_threads(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with (
        losing(server.url) as (url, losses),
        tuff.Client(url, retries=0) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        polls = [threads.submit(client.poll, topic, wait=60) for _ in range(3)]
        until(lambda: waiting_polls(server) == 3)
        losses.lose_request("publish")
        with pytest.raises(tuff.ConnectionLostError):
            client.publish(topic, "lost")

        errors = [poll.exception() for poll in polls]

    assert [type(error) for error in errors] == [tuff.ConnectionLostError] * 3


def test_closing_fails_the_calls_that_wait(server: ServerProcess, topic: tuff.TopicId) -> None:
    client = tuff.Client(server.url, retries=0)
    with ThreadPoolExecutor(2) as threads:
        polls = [threads.submit(client.poll, topic, wait=60) for _ in range(2)]
        until(lambda: waiting_polls(server) == 2)

        client.close()

        assert [type(poll.exception()) for poll in polls] == [tuff.ConnectionLostError] * 2
    with pytest.raises(tuff.errors.ClientClosedError):
        client.publish(topic, "m")


def test_each_of_two_subscribers_stops_by_itself(
    server: ServerProcess, topic: tuff.TopicId, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One of them reads for both, and the other one waits for it."""
    table = tuff.TransactionalTable(tmp_path_factory.mktemp("table"))
    with table, tuff.Client(server.url) as client:
        subscribers = [
            client.subscriber(
                topic, lambda messages, tx: None, positions=tuff.TablePositions(table, name)
            )
            for name in ("one", "two")
        ]
        threads = [Thread(target=subscriber.run) for subscriber in subscribers]
        for thread in threads:
            thread.start()
        until(lambda: waiting_polls(server) == 2)
        for subscriber, thread in zip(subscribers, threads, strict=True):
            subscriber.stop()
            thread.join(60)
            assert not thread.is_alive()
        until(lambda: waiting_polls(server) == 0)


class CountedLock:
    """A lock that counts the threads that have it, had it or wait for it."""

    def __init__(self) -> None:
        self.entered = 0
        self._lock = Lock()

    def __enter__(self) -> None:
        self.entered += 1
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def test_threads_do_not_wait_in_turns_for_a_server_that_is_not_there() -> None:
    """Each would wait as long as it takes to give up a connection."""
    began, fails = Event(), Event()
    attempts: list[int] = []

    def open_one() -> transport.Session:
        attempts.append(1)
        began.set()
        fails.wait()
        raise tuff.errors.ServerUnreachableError("it is not there")

    (address,) = addresses_of(
        "http://127.0.0.1:1", 30.0, 5.0, token=None, ssl_context=None, with_sessions=True
    )
    used = transport.Transport(address)
    used._begin_session = open_one
    used._opening = CountedLock()
    request = Request(operation=START_TRANSACTION)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(used._response_of_session, request, None)
        began.wait()
        others = [threads.submit(used._response_of_session, request, None) for _ in range(2)]
        until(lambda: used._opening.entered == 3)
        fails.set()

        assert isinstance(first.exception(), tuff.errors.ServerUnreachableError)
        assert [other.result() for other in others] == [None, None]  # they use HTTP
    assert len(attempts) == 1


FORK = """
import os, sys, tuff
client = tuff.Client(sys.argv[1])
topic = tuff.TopicId("client", sys.argv[2])
client.publish(topic, "parent")
child = os.fork()
if child == 0:
    client.publish(topic, "child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.publish(topic, "parent")
client.close()
"""


def test_a_forked_process_has_a_session_of_its_own(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses):
        output_of(FORK, url, topic.name)

    assert [each.payload for each in client.poll(topic)] == [b"parent", b"child", b"parent"]
    assert losses.sessions == 2


def is_of_the_session(code: CodeType) -> bool:
    return code.co_filename == transport.__file__


class AtLines(Interrupter):
    """Interrupts before the n-th line of the session. Lines with a `with` do not count: Python
    itself raises no interrupt between its end and the release of the lock."""

    def __init__(self, line_number: int) -> None:
        super().__init__(line_number, is_of_the_session)
        self._has_moved = True

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Interrupter | None":
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line.lstrip().startswith("with "):
            return self
        return super().__call__(frame, event, argument)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage traces already")
@pytest.mark.parametrize("meanwhile", [0, 1], ids=["alone", "beside a poll"])
def test_an_interrupt_at_any_line_leaves_the_client_usable(
    server: ServerProcess, topic: tuff.TopicId, meanwhile: int
) -> None:
    with tuff.Client(server.url) as client, ThreadPoolExecutor(1) as thread:
        for line_number in range(1, 1_000):
            last = client.publish(topic, "before").ids[-1]
            polls = [
                thread.submit(client.poll, topic, last, inclusive=False, wait=60)
                for _ in range(meanwhile)
            ]
            until(lambda: waiting_polls(server) == meanwhile)
            interrupter = AtLines(line_number)
            sys.settrace(interrupter)
            try:
                client.publish(topic, "interrupted")
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            client.publish(topic, "after")
            assert all(poll.result(timeout=60) for poll in polls), line_number
            if interrupter.left > 0:
                assert line_number > 30
                return
    raise AssertionError("it never came to an end")
