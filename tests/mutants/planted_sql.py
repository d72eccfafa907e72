"""Bugs to plant in transactions that the user's database decides (decision 0045)."""

from collections.abc import Sequence

from tests.mutants.planted import Mutant

_WHOSE = "tests/sql/test_whose_commit.py"
_WITHIN = f"{_WHOSE}::TestWithinTheBlock::test_an_end_of_the_transaction_is_found"
_BEHIND = (
    f"{_WHOSE}::TestBehindTheRow::test_a_commit_that_commits_nothing_publishes_nothing_on_a_loop"
)
_QUESTION = "tests/sql/test_question.py"

SQL_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "a member of a group that lost its partition commits rows and position",
        "tuff/sql/positions.py",
        " AND owner = '{self._owner}'",
        "",
        (
            "tests/sql/test_group.py::test_a_member_that_lost_its_partition_can_not_commit_even_if_its_successor_did_nothing[None]",
        ),
    ),
    Mutant(
        "a member begins behind the offset that the server knows",
        "tuff/sql/positions.py",
        "        return MessageId.from_hex(found[0]) if found else start\n",
        "        return start\n",
        (
            "tests/sql/test_group.py::test_the_position_of_the_database_counts_and_not_that_of_the_server",
        ),
    ),
    Mutant(
        "the row of a block is not looked for after its commit",
        "tuff/sql/database.py",
        "        if list((yield from hook(partial(block.recorded, self._dialect, pointer)))) != [pointer]:\n",
        "        if list((yield from hook(partial(block.recorded, self._dialect, pointer)))) is None:\n",
        (
            f"{_BEHIND}[ROLLBACK BEGIN-by_asyncpg]",
            f"{_WHOSE}::TestBehindTheRow::test_a_listener_of_a_session_that_ends_the_transaction_is_found",
        ),
    ),
    Mutant(
        "the row of a block is inserted into any transaction of PostgreSQL",
        "tuff/sql/dialects.py",
        "SELECT {{pointer}} / {_IS_MARKED}",
        "SELECT {{pointer}}",
        (f"{_WITHIN}_on_a_loop[ROLLBACK BEGIN-by_asyncpg]",),
    ),
    Mutant(
        "the row of a block is inserted into any transaction of SQLite",
        "tuff/sql/database.py",
        "        if pointer is None or not self._dialect.insert_requires_mark:\n",
        "        if pointer is None:\n",
        (f"{_WITHIN}[ROLLBACK BEGIN-by_sqlite3]",),
    ),
    Mutant(
        "a block of psycopg begins within a transaction of the program",
        "tuff/sql/psycopg.py",
        "        _require_idle(self._connection)\n        block = self._connection.transaction()\n        block.__enter__()\n",
        "        block = self._connection.transaction()\n        block.__enter__()\n",
        (
            f"{_WHOSE}::TestTheBegin::test_a_transaction_that_began_after_the_context_was_made_is_refused_and_kept",
        ),
    ),
    Mutant(
        "a cancellation interrupts the begin of asyncpg",
        "tuff/sql/asyncpg.py",
        "        try:\n            await asyncio.shield(starting)\n        except",
        "        try:\n            await starting\n        except",
        (
            f"{_WHOSE}::TestCancellation::test_a_connection_works_on_after_a_cancellation_during_the_begin",
        ),
    ),
    Mutant(
        "a resolver lists the prepared transactions before it reads the rows",
        "tuff/sql/resolver.py",
        "        rows = yield from self._decider.rows(ROW_COUNT_MAX)\n"
        "        listed = yield from self._retries.ask(transaction_calls.prepared(name))\n",
        "        listed = yield from self._retries.ask(transaction_calls.prepared(name))\n"
        "        rows = yield from self._decider.rows(ROW_COUNT_MAX)\n",
        (
            f"{_QUESTION}::test_a_row_whose_transaction_was_prepared_during_a_round_is_not_deleted[the rows are read]",
        ),
    ),
    Mutant(
        "a failed commit whose transaction is still open counts as committed",
        "tuff/sql/rows_and_messages.py",
        "        if answer is not Answer.COMMITTED:\n",
        "        if answer is None:\n",
        (
            f"{_QUESTION}::test_a_failed_commit_whose_transaction_is_still_open_counts_as_neither[False]",
        ),
    ),
    Mutant(
        "a row that a resolver has settled and deleted counts as never committed",
        "tuff/sql/rows_and_messages.py",
        "            # A resolver settled it and deleted its row before this block asked.\n"
        "            return Answer.COMMITTED\n",
        "            return Answer.NEVER\n",
        (f"{_QUESTION}::test_a_row_that_a_resolver_settled_and_deleted_counts_as_committed",),
    ),
    Mutant(
        "a block of a database runs in the transaction of a group",
        "tuff/commit_protocol.py",
        "    return any(each.is_of_group for each in open_blocks())\n",
        "    return False\n",
        (
            "tests/sql/test_group_transaction.py::test_a_block_in_the_transaction_of_a_consumer_group_is_refused",
        ),
    ),
)
