"""Which transaction is current: in threads, tasks, nested transactions, and outside of any."""

import asyncio
import gc
from contextvars import Context, copy_context
from threading import Event, RLock, Thread

import pytest

from tests.table.service_model import Service
from tests.table.transactions import fill, put_and_fail, read, transaction
from tuff.errors import WrongStateError
from tuff.tables.open_transactions import ENDED_COUNT_MAX, NESTED_COUNT_MAX
from tuff.tables.versioned_table import VersionedTable


@pytest.mark.parametrize("call", ["get", "delete", "scan", "put"])
def test_outside_of_a_transaction_a_call_is_refused(
    service: Service, table: VersionedTable, call: str
) -> None:
    arguments = {"get": (b"a",), "delete": (b"a",), "scan": (), "put": (b"a", b"b")}[call]

    with pytest.raises(WrongStateError, match=r"client\.transaction"):
        getattr(table, call)(*arguments)
    fill(service, table, "a")
    with pytest.raises(WrongStateError, match=r"client\.transaction"):
        getattr(table, call)(*arguments)


def test_after_commit_tx_reads_and_writes_are_refused(
    service: Service, table: VersionedTable
) -> None:
    started = service.start()
    table.start_tx(started)
    table.put(b"a", b"b")
    table.commit_tx(started)

    with pytest.raises(WrongStateError, match="no transaction"):
        table.put(b"a", b"late")
    with pytest.raises(WrongStateError, match="no transaction"):
        table.get(b"a")


def test_a_hook_without_a_start_is_refused(service: Service, table: VersionedTable) -> None:
    never = service.start()
    table.start_tx(service.start())

    for hook in ("update_tx", "tx_changes", "commit_tx", "post_commit", "rollback_tx"):
        with pytest.raises(WrongStateError, match="start_tx"):
            getattr(table, hook)(never)
    table.leave_tx(never)
    table.put(b"a", b"b")


def test_a_committed_transaction_can_not_be_rolled_back(
    service: Service, table: VersionedTable
) -> None:
    with transaction(service, table) as started:
        table.put(b"apple", b"apple")

    with pytest.raises(WrongStateError, match="committed"):
        table.rollback_tx(started)
    assert read(service, table) == [(b"apple", b"apple")]


def test_a_scan_ends_with_its_transaction(service: Service, table: VersionedTable) -> None:
    fill(service, table, *"abc")
    with transaction(service, table):
        rows = table.scan()
        next(rows)

    with pytest.raises(WrongStateError, match="no transaction"):
        next(rows)


def test_each_thread_works_in_its_own_transaction(service: Service, table: VersionedTable) -> None:
    started = [service.start() for _ in range(8)]
    seen: dict[int, list[tuple[bytes, bytes]]] = {}

    def work(number: int) -> None:
        mine = started[number]
        table.start_tx(mine)
        for row in range(50):
            table.put(b"%d/%d" % (number, row), b"%d" % row)
        seen[number] = list(table.scan())
        table.commit_tx(mine)
        if number % 2:
            table.rollback_tx(mine)
        else:
            table.post_commit(mine)

    threads = [Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in enumerate(started):
        (service.abort if number % 2 else service.commit)(one)

    for number in range(8):
        assert {key.split(b"/")[0] for key, _ in seen[number]} == {b"%d" % number}
    rows = dict(read(service, table))
    assert len(rows) == 4 * 50
    assert {key.split(b"/")[0] for key in rows} == {b"0", b"2", b"4", b"6"}


class NotingLock:
    """A lock that sets `came` when a thread wants it."""

    def __init__(self) -> None:
        self.came = Event()
        self._lock = RLock()

    def __enter__(self) -> None:
        self.came.set()
        self._lock.acquire()

    def __exit__(self, *_raised: object) -> None:
        self._lock.release()


@pytest.mark.parametrize(
    "hook", ["tx_changes", "commit_tx", "post_commit", "rollback_tx", "compact"]
)
def test_a_hook_waits_for_a_call_in_another_thread(
    service: Service, table: VersionedTable, hook: str
) -> None:
    started = service.start()
    table.start_tx(started)
    work, lock, done = table._transactions.current(), NotingLock(), list[str]()
    work.lock = table._compacting = lock  # type: ignore[assignment] # as far as it is used

    def call() -> None:
        getattr(table, hook)(service if hook == "compact" else started)
        done.append(hook)
        lock.came.set()

    with lock:
        lock.came.clear()
        other = Thread(target=copy_context().run, args=(call,))
        other.start()
        assert lock.came.wait(10)
        done_meanwhile = list(done)
    other.join()

    assert (done_meanwhile, done) == ([], [hook])


async def test_each_task_works_in_its_own_transaction_and_a_child_in_its_parents(
    service: Service, table: VersionedTable
) -> None:
    async def child(name: bytes) -> None:
        table.put(name + b"/child", b"")

    async def parent(name: bytes) -> list[bytes]:
        with transaction(service, table):
            await asyncio.sleep(0)
            await asyncio.gather(child(name))
            await asyncio.to_thread(table.put, name + b"/thread", b"")
            return [key for key, _ in table.scan()]

    found = await asyncio.gather(parent(b"a"), parent(b"b"))

    assert found == [[b"a/child", b"a/thread"], [b"b/child", b"b/thread"]]
    assert len(read(service, table)) == 4


def test_contexts_share_the_work_of_one_transaction(
    service: Service, table: VersionedTable
) -> None:
    with transaction(service, table) as started:
        elsewhere = Context()
        elsewhere.run(table.start_tx, started)
        elsewhere.run(table.put, b"there", b"1")
        table.put(b"here", b"1")
        assert [key for key, _ in table.scan()] == [b"here", b"there"]

    with pytest.raises(WrongStateError, match="no transaction"):
        elsewhere.run(table.get, b"there")
    assert [key for key, _ in read(service, table)] == [b"here", b"there"]


def test_an_inner_transaction_is_independent_of_the_outer_one(
    service: Service, table: VersionedTable
) -> None:
    with transaction(service, table):
        table.put(b"outer", b"1")
        put_and_fail(service, table, b"inner")
        table.put(b"outer", b"2")

    assert read(service, table) == [(b"outer", b"2")]


@pytest.mark.parametrize("is_committed", [True, False])
def test_two_participants_on_one_table_do_not_end_the_outer_transaction(
    service: Service, table: VersionedTable, is_committed: bool
) -> None:
    with transaction(service, table):
        table.put(b"outer", b"1")
        if is_committed:
            with transaction(service, table, table):
                table.put(b"inner", b"1")
        else:
            put_and_fail(service, table, b"inner", times=2)
        table.put(b"outer", b"2")

    inner = [(b"inner", b"1")] if is_committed else []
    assert read(service, table) == [*inner, (b"outer", b"2")]


def test_a_task_that_outlives_its_block_does_not_write_into_the_outer_one(
    service: Service, table: VersionedTable
) -> None:
    with transaction(service, table):
        table.put(b"outer", b"1")
        with transaction(service, table):
            elsewhere = copy_context()

        with pytest.raises(WrongStateError, match="no transaction"):
            elsewhere.run(table.put, b"late", b"1")

    assert read(service, table) == [(b"outer", b"1")]


def test_hooks_of_a_transaction_work_in_a_context_where_it_was_not_started(
    service: Service, table: VersionedTable
) -> None:
    started = service.start()

    def start_and_write() -> None:
        table.start_tx(started)
        table.put(b"there", b"1")

    Context().run(start_and_write)
    gc.collect()
    assert list(table.tx_changes(started)) != []
    table.commit_tx(started)
    service.commit(started)
    table.post_commit(started)

    assert read(service, table) == [(b"there", b"1")]


def test_ended_transactions_that_a_table_remembers_are_bounded(
    service: Service, table: VersionedTable
) -> None:
    first = service.start()
    table.start_tx(first)
    for _ in range(2 * ENDED_COUNT_MAX):
        fill(service, table, "apple")
    table.put(b"pear", b"1")
    for hook in (table.commit_tx, table.post_commit):
        hook(first)

    assert len(table._transactions._works) == ENDED_COUNT_MAX


def test_after_leave_tx_no_transaction_is_current(service: Service, table: VersionedTable) -> None:
    started = service.start()
    table.start_tx(started)
    table.leave_tx(started)

    with pytest.raises(WrongStateError, match="no transaction"):
        table.put(b"a", b"b")
    with pytest.raises(WrongStateError, match="start_tx"):
        table.rollback_tx(started)
    fill(service, table, "apple")


def test_after_leave_tx_the_outer_transaction_is_current_again(
    service: Service, table: VersionedTable
) -> None:
    with transaction(service, table):
        started = service.start()
        table.start_tx(started)
        table.leave_tx(started)
        table.put(b"outer", b"1")

    assert read(service, table) == [(b"outer", b"1")]


def test_open_transactions_of_a_context_are_bounded(
    service: Service, table: VersionedTable
) -> None:
    def start_many() -> None:
        started = [service.start() for _ in range(NESTED_COUNT_MAX)]
        for one in started:
            table.start_tx(one)
        elsewhere = Context()
        elsewhere.run(table.start_tx, started[0])
        elsewhere.run(table.rollback_tx, started[0])

        table.start_tx(service.start())
        with pytest.raises(WrongStateError, match="never ended"):
            table.start_tx(service.start())

    copy_context().run(start_many)


@pytest.mark.parametrize("hook", ["tx_changes", "commit_tx"])
def test_a_hook_of_a_transaction_that_ended_in_another_context_is_refused(
    service: Service, table: VersionedTable, hook: str
) -> None:
    started = service.start()
    table.start_tx(started)
    table.put(b"a", b"b")
    elsewhere = Context()
    elsewhere.run(table.start_tx, started)
    elsewhere.run(table.rollback_tx, started)

    with pytest.raises(WrongStateError, match=r"is over on .* \(undone\)"):
        getattr(table, hook)(started)


def test_starts_of_one_transaction_take_turns(service: Service, table: VersionedTable) -> None:
    started, lock, done = service.start(), NotingLock(), list[str]()
    table._transactions._joining = lock  # type: ignore[assignment] # as far as it is used
    joining = Thread(target=lambda: [table.start_tx(started), done.append("joined")])

    with lock:
        lock.came.clear()
        joining.start()
        assert lock.came.wait(10)
        joined_meanwhile = list(done)
    joining.join()

    assert (joined_meanwhile, done) == ([], ["joined"])
