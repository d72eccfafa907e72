"""The traceback of a failed call: the program's line, few frames of the library, no flow."""

import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType

import pytest

import tuff
from tests.http.process import ServerProcess

# Below the line of the program, those of the causes included: the method of the client and one that
# sends the call, or two of the future of a publisher. docs/howto/client.md promises no more.
FRAMES_COUNT_MAX = 3
NOWHERE = "http://127.0.0.1:1"
MISSING = tuff.TopicId("client", "missing")


def frames_below_this_file(error: BaseException) -> list[str]:
    """All frames that Python prints for an error and its causes, but those of this file and what is
    above it."""
    frames = []
    each: BaseException | None = error
    while each is not None:
        shown = [one.filename for one in traceback.extract_tb(each.__traceback__)]
        own = [number for number, name in enumerate(shown) if name == __file__]
        frames += shown[own[-1] + 1 if own else 0 :]
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return frames


class Shelf(tuff.TransactionAware):
    """A participant that keeps nothing, and fails where it is told to."""

    name = "shelf"

    def __init__(self, fails: Callable[[], object] = lambda: None) -> None:
        self.fails = fails

    def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
        return [b"apple"]

    def commit_tx(self, transaction: tuff.Transaction) -> None:
        self.fails()

    def rollback_tx(self, transaction: tuff.Transaction) -> None: ...


def in_block(client: tuff.Client) -> None:
    with client.transaction() as tx:
        tx.publish(MISSING, "x")


def in_publisher(client: tuff.Client) -> None:
    with client.publisher() as publisher:
        publisher.publish(MISSING, "x").result()


FAILING: dict[str, Callable[[tuff.Client], object]] = {
    "publish": lambda client: client.publish(MISSING, "x"),
    "poll": lambda client: client.poll(MISSING),
    "create": lambda client: client.topics.create(MISSING, ttl=0),
    "start": lambda client: client.transactions.start(timeout=1e9),
    "commit": lambda client: client.transactions.commit(1),
    "run": lambda client: client.run(lambda tx: tx.publish(MISSING, "x")),
    "transaction": in_block,
    "group": lambda client: client.groups.get("client", "missing"),
    "publisher": in_publisher,
    "subscribe": lambda client: next(client.subscribe(MISSING)),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_refused_call_shows_few_frames(client: tuff.Client, name: str) -> None:
    with pytest.raises(tuff.TuffError) as caught:
        FAILING[name](client)

    assert len(frames_below_this_file(caught.value)) <= FRAMES_COUNT_MAX


@pytest.mark.parametrize("name", sorted(FAILING.keys() - {"subscribe"}))  # it waits for the server
def test_a_call_that_reaches_no_server_shows_few_frames(name: str) -> None:
    with (
        tuff.Client(NOWHERE, retries=1) as client,
        pytest.raises(tuff.errors.ServerUnreachableError) as caught,
    ):
        FAILING[name](client)

    assert len(frames_below_this_file(caught.value)) <= FRAMES_COUNT_MAX


async def in_async_block(client: tuff.AsyncClient) -> None:
    async with client.transaction() as tx:
        await tx.publish(MISSING, "x")


FAILING_IN_TASKS: dict[str, Callable[[tuff.AsyncClient], Awaitable[object]]] = {
    "publish": lambda client: client.publish(MISSING, "x"),
    "create": lambda client: client.topics.create(MISSING, ttl=0),
    "start": lambda client: client.transactions.start(timeout=1e9),
    "run": lambda client: client.run(lambda tx: tx.publish(MISSING, "x")),
    "transaction": in_async_block,
}


@pytest.mark.parametrize("name", FAILING_IN_TASKS)
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_failed_call_of_a_task_shows_few_frames(
    server: ServerProcess, name: str, *, is_there: bool
) -> None:
    url = server.url if is_there else NOWHERE
    async with tuff.AsyncClient(url, retries=1) as client:
        with pytest.raises(tuff.TuffError) as caught:
            await FAILING_IN_TASKS[name](client)

    assert len(frames_below_this_file(caught.value)) <= FRAMES_COUNT_MAX


def lines(trace: TracebackType | None) -> list[str]:
    return [one.name for one in traceback.extract_tb(trace)]


@pytest.mark.filterwarnings("ignore::tuff.errors.OutsideTransactionWarning")
def test_the_functions_of_the_program_stay_in_the_traceback(client: tuff.Client) -> None:
    def store_elsewhere() -> None:
        client.publish(MISSING, "x")

    with (
        pytest.raises(tuff.TopicNotFoundError) as caught,
        client.transaction(Shelf(store_elsewhere)),
    ):
        pass

    assert "store_elsewhere" in lines(caught.value.__traceback__)
    assert len(frames_below_this_file(caught.value)) <= FRAMES_COUNT_MAX


def test_a_bug_in_a_function_of_the_program_keeps_all_of_its_frames(client: tuff.Client) -> None:
    def fail() -> None:
        raise KeyError("apple")

    with pytest.raises(KeyError) as caught, client.transaction(Shelf(fail)):
        pass

    assert "fail" in lines(caught.value.__traceback__)


def test_an_error_that_the_program_handles_meanwhile_keeps_its_frames(client: tuff.Client) -> None:
    def fail() -> None:
        raise KeyError("apple")

    def publish_instead() -> None:
        try:
            fail()
        except KeyError:
            client.publish(MISSING, "x")

    with pytest.raises(tuff.TopicNotFoundError) as caught:
        publish_instead()

    (handled,) = [each for each in contexts_of(caught.value) if isinstance(each, KeyError)]
    assert lines(handled.__traceback__)[-1] == "fail"


def contexts_of(error: BaseException) -> list[BaseException]:
    found = []
    each = error.__context__
    while each is not None:
        found.append(each)
        each = each.__context__
    return found
