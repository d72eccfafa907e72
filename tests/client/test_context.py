"""A transaction context belongs to one block at a time; a second entry is refused."""

import asyncio
from functools import partial

import pytest

import tuff
from tests.client.proxy import losing
from tests.client.recording import Participant, PlayedService, Record
from tests.http.process import ServerProcess
from tuff.errors import OutsideTransactionWarning


def payloads(client: tuff.Client, topic: tuff.TopicId) -> list[bytes]:
    return [message.payload for message in client.poll(topic, isolation="committed")]


def test_a_second_entry_of_a_context_is_refused_and_the_first_block_continues(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """The second entry rolled the first one back, whose block then ended without an error."""
    context = client.transaction(table)

    with context as tx:
        table.put(b"paid", b"1")
        tx.publish(topic, "paid")
        with pytest.raises(RuntimeError, match="in a transaction already"), context:
            pass
        assert table.get(b"paid") == b"1"

    assert payloads(client, topic) == [b"paid"]
    with context:
        assert table.get(b"paid") == b"1"


async def test_a_task_that_enters_the_context_of_another_task_is_refused(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url) as on_loop:
        context = on_loop.transaction()
        is_inside, may_leave = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with context as tx:
                await tx.publish(topic, "paid")
                is_inside.set()
                await may_leave.wait()

        running = asyncio.create_task(first())
        await is_inside.wait()
        with pytest.raises(RuntimeError, match="in a transaction already"):
            async with context:
                pass
        may_leave.set()
        await running

    assert payloads(client, topic) == [b"paid"]


async def test_two_tasks_that_enter_a_context_at_once_start_one_transaction(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    """Neither is in a transaction while both wait for the server."""
    async with tuff.AsyncClient(server.url) as on_loop:
        context = on_loop.transaction()

        async def work(text: str) -> None:
            async with context as tx:
                await tx.publish(topic, text)

        results = await asyncio.gather(work("one"), work("two"), return_exceptions=True)

    assert [type(result) for result in results] == [type(None), tuff.WrongStateError]
    assert payloads(client, topic) == [b"one"]


def test_a_block_that_aborted_occupies_the_context_until_it_ends(client: tuff.Client) -> None:
    """Its end would have committed the transaction of the next block."""
    context = client.transaction()

    with context as tx:
        tx.abort()
        with pytest.raises(RuntimeError, match="block has not ended"), context:
            pass
    with context as tx:
        tx.abort()


def test_a_start_that_fails_leaves_the_context_free() -> None:
    record = Record()
    client = tuff.Client(transport=PlayedService(record), client_id="tests", retries=0)
    context = client.transaction(Participant("a", record))
    record.fail["a.start_tx"] = OSError("no")
    with pytest.raises(OSError, match="no"), context:
        pass

    record.fail.clear()
    with context:
        pass

    assert record.steps[-1] == "a.post_commit"


def test_the_end_of_a_block_whose_transaction_has_ended_is_an_error(
    client: tuff.Client,
) -> None:
    context = client.transaction()
    context.__enter__()
    context.__exit__(None, None, None)

    with pytest.raises(RuntimeError, match="ended by another user"):
        context.__exit__(None, None, None)


def test_messages_that_the_block_published_by_a_call_of_the_client_commit(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """The context had written nothing itself and said so, and the server refused to commit."""
    with client.transaction(table) as tx:
        client.publish(topic, "sold", transaction=tx.transaction)

    assert payloads(client, topic) == [b"sold"]


def test_a_publish_beside_the_transaction_of_the_block_warns_with_the_line_of_the_program(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    typed = client.topic(topic, tuff.STR)

    with client.publisher() as publisher, client.transaction():
        for publish in (
            partial(client.publish, topic),
            typed.publish,
            partial(publisher.publish, topic),
        ):
            with pytest.warns(OutsideTransactionWarning, match=r"tx\.publish") as told:
                publish("beside")
            assert [each.filename for each in told] == [__file__]

    assert payloads(client, topic) == [b"beside"] * 3


def test_a_publish_in_the_transaction_of_the_block_or_of_another_client_does_not_warn() -> None:
    client, other = (tuff.Client(transport=PlayedService(Record()), retries=0) for _ in range(2))

    with client.transaction() as tx:
        client.publish("shop:orders", "within", transaction=tx.transaction)
        other.publish("shop:orders", "elsewhere")
        tx.abort()
        client.publish("shop:orders", "after the end")
    client.publish("shop:orders", "behind the block")


async def test_a_publish_beside_the_transaction_of_a_task_warns(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url) as on_loop:
        async with on_loop.transaction() as tx:
            with pytest.warns(OutsideTransactionWarning) as told:
                await on_loop.publish(topic, "beside")
            await on_loop.publish(topic, "within", transaction=tx.transaction)
        await on_loop.publish(topic, "behind the block")

    assert told[0].filename == __file__


def test_a_checkpoint_by_a_call_of_the_client_commits(client: tuff.Client) -> None:
    with client.transaction() as tx:
        pointer = tx.transaction.transaction_id
        client.transactions.checkpoint(pointer)

    assert client.transactions.get(pointer).state == "committed"


def test_of_two_blocks_that_change_a_key_only_the_first_commits(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    def late(watched: tuff.Client) -> None:
        with watched.transaction() as tx:
            tx.add_changes(b"orders/17", b"orders/18")
            tx.publish(topic, "late")
            with watched.transaction() as other:
                other.add_changes(b"orders/17")
                other.publish(topic, "first")

    with losing(server.url) as (url, losses), tuff.Client(url) as watched:
        with pytest.raises(tuff.TransactionConflictError):
            late(watched)
        with watched.transaction() as tx:
            tx.add_changes(b"orders/18")
            tx.publish(topic, "third")

    assert "can-commit" not in losses.seen
    assert payloads(client, topic) == [b"first", b"third"]


def test_changes_of_the_block_and_of_its_participants_are_checked_together(
    client: tuff.Client, table: tuff.TransactionalTable
) -> None:
    def late() -> None:
        with client.transaction(table) as tx:
            table.put(b"paid", b"1")
            tx.add_changes(b"orders/17")
            with client.transaction() as other:
                other.add_changes(b"orders/17")

    with pytest.raises(tuff.TransactionConflictError) as caught:
        late()

    assert caught.value.members["key"] == "orders/17"
    with client.transaction(table):
        assert table.get(b"paid") is None


def test_keys_are_bytes_and_belong_to_a_block(client: tuff.Client) -> None:
    context = client.transaction()

    with pytest.raises(tuff.WrongStateError, match="inside of the block"):
        context.add_changes(b"key")
    with pytest.raises(TypeError, match="a key has the type bytes"), context as tx:
        tx.add_changes("key")  # type: ignore[arg-type]  # as a program without types


def test_a_long_transaction_takes_no_keys_and_has_no_chain(client: tuff.Client) -> None:
    with (
        pytest.raises(tuff.WrongStateError, match="never checked"),
        client.transaction(type="long") as tx,
    ):
        tx.add_changes(b"key")
    with pytest.raises(ValueError, match="chain is for short"):
        client.transaction(type="long", chain=True)


def test_a_block_does_not_change_the_keys_of_the_block_before(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    context = client.transaction()
    with context as tx:
        tx.add_changes(b"orders/17")

    with context as tx:
        tx.publish(topic, "of the second block")
        with client.transaction() as other:
            other.add_changes(b"orders/17")

    assert payloads(client, topic) == [b"of the second block"]


def test_a_participant_that_joins_a_transaction_of_messages_is_announced() -> None:
    """The server forgets invalid pointers of such a transaction, and its rows became visible."""
    record = Record()
    played = PlayedService(record)
    client = tuff.Client("http://127.0.0.1:1", transport=played)
    context = client.transaction()

    with context as tx:
        tx.add(Participant("a", record))
        tx.add(Participant("b", record))
    with context:
        pass

    assert record.steps[:4] == ["start", "join", "a.start_tx", "b.start_tx"]
    assert record.steps.count("join") == 1
    assert [start.get("messagesOnly") for start in played.starts] == [True, None]


class Counter(tuff.TransactionAware):
    """Counts its transactions, with the hooks that are needed."""

    name = "counter"

    def __init__(self) -> None:
        self.ended: list[tuple[str, int]] = []

    def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
        return [b"count"]

    def commit_tx(self, transaction: tuff.Transaction) -> None:
        self.ended.append(("written", transaction.write_pointer))

    def rollback_tx(self, transaction: tuff.Transaction) -> None:
        self.ended.append(("undone", transaction.write_pointer))


def test_three_hooks_make_a_participant(client: tuff.Client) -> None:
    counter = Counter()

    with client.transaction(counter) as tx:
        tx.checkpoint()
        first = tx.transaction
    with client.transaction(counter) as tx:
        second = tx.transaction
        tx.abort()

    assert counter.ended == [("written", first.write_pointer), ("undone", second.write_pointer)]
    assert client.transactions.get(first).state == "committed"


def test_a_class_without_a_hook_that_is_needed_makes_no_participant() -> None:
    class Half(tuff.TransactionAware):
        name = "half"

        def commit_tx(self, transaction: tuff.Transaction) -> None: ...
        def rollback_tx(self, transaction: tuff.Transaction) -> None: ...

    with pytest.raises(TypeError, match="tx_changes"):
        Half()  # type: ignore[abstract]  # what is tested


class Hookless:
    """As participants were written that needed fewer hooks."""

    name = "hookless"

    def start_tx(self, transaction: tuff.Transaction) -> None: ...
    def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
        return []

    def commit_tx(self, transaction: tuff.Transaction) -> None: ...
    def rollback_tx(self, transaction: tuff.Transaction) -> None: ...


@pytest.mark.parametrize("wrong", [Hookless(), Counter, b"rows"])
def test_what_lacks_a_hook_is_refused_before_a_transaction_starts(
    client: tuff.Client, wrong: tuff.TransactionAware
) -> None:
    with pytest.raises(TypeError, match=r"inherits from tuff\.TransactionAware"):
        client.transaction(wrong)
    with client.transaction() as tx, pytest.raises(TypeError, match="is not a participant"):
        tx.add(wrong)
    assert client.transactions.overview().in_progress == ()


def test_a_participant_that_joins_between_the_blocks_of_a_chain_gets_a_transaction_of_its_own(
    client: tuff.Client, table: tuff.TransactionalTable
) -> None:
    """The chain has started one in which only messages take part."""
    context = client.transaction(chain=True)
    with context as tx:
        first = tx.transaction.transaction_id
        tx.add_changes(b"a")
    (waiting,) = client.transactions.overview().in_progress
    context.add(table)

    with context as tx:
        second = tx.transaction.transaction_id
        context.end_chain()

    assert first < waiting.transaction_id < second
    assert client.transactions.get(waiting.transaction_id).state == "aborted"


def test_the_error_of_a_conflict_names_the_row_of_the_table(
    client: tuff.Client, table: tuff.TransactionalTable
) -> None:
    """It named the table's id and the key together, in base64."""

    def overtaken(tx: tuff.TransactionContext) -> None:
        table.put(b"apple", b"1")
        with client.transaction(table):
            table.put(b"apple", b"2")

    with pytest.raises(tuff.TransactionConflictError) as caught:
        client.run(overtaken, table, attempts=1)

    assert f"which committed or prepared row b'apple' of {table.name} after" in caught.value.detail


def test_each_attempt_of_a_run_has_its_time_out(client: tuff.Client) -> None:
    found = client.run(
        lambda tx: client.transactions.get(tx.transaction.transaction_id), timeout=77
    )

    assert found.expires_at_ms - found.started_at_ms == 77_000


def test_a_participant_that_the_block_does_not_name_is_told_how_to_join(
    client: tuff.Client, table: tuff.TransactionalTable
) -> None:
    """The advice was to use it within a block, and it was."""
    with client.transaction() as tx:
        with pytest.raises(tuff.WrongStateError, match=r"tx\.add\(table\)"):
            table.put(b"apple", b"1")
        tx.add(table)
        table.put(b"apple", b"1")


def test_a_closed_client_is_no_lost_connection(server: ServerProcess) -> None:
    """Loops that try again after a lost connection never ended."""
    client = tuff.Client(server.url)
    client.close()

    with pytest.raises(tuff.errors.ClientClosedError) as caught:
        client.topics.namespaces()

    assert isinstance(caught.value, tuff.WrongStateError)
    assert not isinstance(caught.value, tuff.ConnectionLostError)
