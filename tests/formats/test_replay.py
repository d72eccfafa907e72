"""The independent reader finds the state of the API in the files of a stopped or killed server."""

import base64
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.formats.history import Expected, History
from tests.formats.message_rows import read_store
from tests.formats.replay import Messages, State, read_state
from tests.formats.transaction_files import DamagedError
from tests.http.process import ServerProcess, serve

# Nothing of the history may end by itself while a busy machine is slow.
PATIENT = ("tx.default_timeout=600", "messaging.max_block=600")


def left_by(server: ServerProcess) -> tuple[Messages, State]:
    data = server.data
    return Messages(read_store(data / "messages")), read_state(data / "snapshots")


def payload(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def read_all(
    messages: Messages, state: State | None, *, later_s: int = 0
) -> dict[str, list[tuple[str, Any]]]:
    now_ms = time.time_ns() // 1_000_000 + 1000 * later_s
    return {
        topic: [(each, payload(d)) for each, d in messages.read(topic, now_ms=now_ms, state=state)]
        for topic in messages.live_topics()
    }


def states(state: State) -> dict[int, tuple[str, str | None]]:
    """The state and reason of each transaction, in the words of the API."""
    committing = {
        each: ("in_progress" if opened["changes"] is None else "committing", None)
        for each, opened in state.open.items()
    }
    return {**state.ended, **committing}


def assert_same(expected: Expected, messages: Messages, state: State) -> None:
    topics = messages.live_topics().items()
    assert {name: (row["generation"], row["properties"]) for name, row in topics} == expected.topics
    assert read_all(messages, None) == expected.all_messages
    assert read_all(messages, state) == expected.committed_messages
    found = states(state)
    assert {each: found.get(each) for each in expected.transactions} == expected.transactions
    assert set(state.open) == expected.in_progress
    assert state.invalid == expected.invalids
    assert state.read_pointer == expected.read_pointer


def assert_one_data_set(expected: Expected, messages: Messages, state: State) -> None:
    facts, mark = messages.facts["facts"], messages.facts["mark"]
    assert facts["store_id"] == state.store_id
    assert expected.write_pointer <= facts["highest_pointer"] <= state.highest_reserved
    offsets = [row["offset"] for row in messages.rows if row["table"] in {"message", "payload"}]
    assert max(offsets) <= mark["last"]
    carried = {row["pointer"] for row in messages.index}
    assert carried <= state.in_progress | state.invalid | set(_committed_pointers(state))


def _committed_pointers(state: State) -> list[int]:
    committed = [each for each, (how, _) in state.ended.items() if how == "committed"]
    return [pointer for each in committed for pointer in state.pointers[each]]


@dataclass(frozen=True, slots=True)
class Killed:
    """A server that was killed after a history, and the state by its API before."""

    server: ServerProcess
    history: History
    expected: Expected


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    server = serve(tmp_path_factory.mktemp("killed"), *PATIENT)
    with closing(server.client()) as client:
        history = History(client, "one").make()
        expected = history.expected()
    server.kill()
    yield Killed(server, history, expected)
    server.end()


def test_the_files_of_a_killed_server_have_the_state_of_the_api(killed: Killed) -> None:
    messages, state = left_by(killed.server)
    expected = killed.expected

    assert_same(expected, messages, state)
    assert_one_data_set(expected, messages, state)
    assert min(state.in_doubt) > expected.write_pointer
    assert not state.is_clean


@pytest.mark.slow
def test_pointers_in_doubt_after_a_crash_are_invalid_after_the_next_start(tmp_path: Path) -> None:
    crashed = serve(tmp_path, *PATIENT)
    with closing(crashed.client()) as client:
        history = History(client, "one").make()
    crashed.kill()
    in_doubt = set(left_by(crashed)[1].in_doubt)
    server = serve(tmp_path, *PATIENT)
    with closing(server.client()) as client:
        expected = history.with_client(client).expected()
    # Killed at once, so that what the start found out stands in the log and in no snapshot.
    server.kill()

    messages, state = left_by(server)

    assert_same(expected, messages, state)
    assert in_doubt <= state.invalid
    server.end()


@pytest.mark.slow
def test_the_files_of_a_stopped_server_have_the_state_of_the_api(tmp_path: Path) -> None:
    crashed = serve(tmp_path, *PATIENT)
    with closing(crashed.client()) as client:
        History(client, "one").make()
    crashed.kill()
    server = serve(tmp_path, *PATIENT)
    with closing(server.client()) as client:
        expected = History(client, "two").make().expected()
    assert server.terminate() == 0

    messages, state = left_by(server)

    assert_same(expected, messages, state)
    assert_one_data_set(expected, messages, state)
    assert state.is_clean
    assert state.in_doubt == []
    server.end()


def test_the_history_has_every_kind_of_row_and_outcome(killed: Killed) -> None:
    messages, state = left_by(killed.server)

    rows = [row for row in messages.rows if row["table"] == "message"]
    assert {row["table"] for row in messages.rows} == {
        "message", "payload", "topic", "index", "metadata",
    }  # fmt: skip
    signs = {row["pointer"] and row["pointer"] > 0 for row in rows}
    assert signs == {None, True, False}
    assert {row["reference"]["count"] for row in rows if row["reference"]} == {0, 1, 2, 4}
    assert {row["kind"] for row in messages.index} == {"m", "p"}
    assert {row["generation"] for row in messages.topics.values()} == {-1, 1, 2}
    assert {state for state, _ in killed.expected.transactions.values()} == {
        "in_progress", "committing", "committed", "aborted", "invalid",
    }  # fmt: skip
    assert any(opened["conflict"] for opened in state.open.values())


def test_messages_expire_by_the_shorter_of_their_own_ttl_and_the_topics(killed: Killed) -> None:
    messages, _ = left_by(killed.server)

    now, later, last = (
        {payload for _, payload in map(_hashable, read_all(messages, None, later_s=s)["one:main"])}
        for s in (0, 3500, 5500)
    )

    assert now - later == {"briefer", "stored briefly"}
    assert last == set()


def test_an_unmarked_row_of_an_invalid_pointer_is_skipped(
    killed: Killed,
) -> None:
    messages, state = left_by(killed.server)
    committed = int(killed.history.transactions[0].id)
    before = read_all(messages, state)["one:main"]

    state.invalid.add(committed)

    gone = [payload for _, payload in before if payload not in _payloads(messages, state)]
    assert gone == [f"of {committed}", "more"]


def test_a_publish_with_a_missing_stored_message_is_refused(
    killed: Killed,
) -> None:
    messages, _ = left_by(killed.server)
    live = messages.live_topics()
    references = [
        row["reference"] for row in messages.rows if row.get("reference") and row["topic"] in live
    ]
    reference = next(each for each in references if each["count"])
    offsets = [row["offset"] for row in messages.rows if row["table"] == "payload"]
    lost = next(offset for offset in offsets if reference["first"] <= offset <= reference["last"])

    left = [r for r in messages.rows if (r["table"], r.get("offset")) != ("payload", lost)]
    with pytest.raises(DamagedError):
        read_all(Messages(left), None)


def _hashable(message: tuple[str, Any]) -> tuple[str, str]:
    return message[0], str(message[1])


def _payloads(messages: Messages, state: State) -> list[Any]:
    return [payload for _, payload in read_all(messages, state)["one:main"]]
