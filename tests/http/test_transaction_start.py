"""Starting transactions and what a start answers (protocol §5.1, §5.2)."""

import base64
import time
from collections.abc import Iterator

import pytest

from tests.http.calls import TRANSACTIONS, begin
from tests.http.client import AVRO, JSON, Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.forms import transaction_bytes
from tests.http.process import ServerProcess, serve

NO_SHORT = "9223372036854775807"
CLOCK_SLACK_MS = 5000


@pytest.fixture(scope="module")
def quiet_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on which nobody else has transactions open."""
    running = serve(tmp_path_factory.mktemp("quiet"))
    yield running
    running.end()


@pytest.fixture
def quiet(quiet_server: ServerProcess) -> Iterator[Client]:
    connection = quiet_server.client()
    yield connection
    for open_one in ok(connection.get(TRANSACTIONS)).json["inProgress"]:
        ok(connection.post(f"{TRANSACTIONS}/{open_one['transactionId']}/invalidate"))
    connection.close()


def test_a_fresh_server_has_nothing_in_progress_and_nothing_invalid(
    new_server: NewServer,
) -> None:
    client = new_server().client()

    first = begin(client).object

    assert (first["invalids"], first["inProgress"]) == ([], [])
    assert first["firstShortInProgress"] == NO_SHORT
    assert int(first["readPointer"]) < int(first["writePointer"])
    client.close()


def test_a_start_answers_the_whole_object(client: Client) -> None:
    started = begin(client, client="billing-7").object

    assert set(started) == {
        "transactionId", "writePointer", "readPointer", "invalids", "inProgress",
        "firstShortInProgress", "type", "checkpointWritePointers", "visibilityLevel", "encoded",
        "state", "client", "timeout", "startedAt", "expiresAt",
    }  # fmt: skip
    assert started["transactionId"] == started["writePointer"]
    assert started["type"] == "short"
    assert started["checkpointWritePointers"] == []
    assert started["visibilityLevel"] == "SNAPSHOT"
    assert started["state"] == "in_progress"
    assert started["client"] == "billing-7"
    assert started["timeout"] == 30
    assert abs(started["startedAt"] - time.time() * 1000) < CLOCK_SLACK_MS
    assert started["expiresAt"] == started["startedAt"] + 30_000


def test_every_pointer_is_a_decimal_string(client: Client) -> None:
    other = begin(client)
    ok(other.invalidate())
    open_one = begin(client)
    started = begin(client).object

    assert open_one.id in started["inProgress"]
    assert other.id in started["invalids"]
    for name in ("transactionId", "writePointer", "readPointer", "firstShortInProgress"):
        assert isinstance(started[name], str)
        assert started[name] == str(int(started[name]))
    for name in ("invalids", "inProgress"):
        assert started[name] == [str(one) for one in sorted(map(int, started[name]))]


def test_write_pointers_only_grow(client: Client) -> None:
    pointers = []
    for _ in range(20):
        tx = begin(client)
        pointers += [int(tx.id), int(ok(tx.checkpoint()).json["writePointer"])]
        ok(tx.abort())

    assert pointers == sorted(set(pointers))


def test_encoded_is_what_thrift_itself_writes(client: Client) -> None:
    invalid, open_one = begin(client), begin(client, type="long")
    ok(open_one.checkpoint())
    ok(invalid.invalidate())

    for kind in ("short", "long"):
        tx = begin(client, type=kind)
        assert base64.b64decode(tx.object["encoded"]) == transaction_bytes(tx.object)
        for _ in range(2):
            checked = ok(tx.checkpoint()).json
            assert base64.b64decode(checked["encoded"]) == transaction_bytes(checked)


def test_without_lists_three_members_are_left_out(client: Client) -> None:
    whole = begin(client, lists=True).object
    short = begin(client, lists=False).object

    assert set(whole) - set(short) == {"invalids", "inProgress", "encoded"}
    assert set(short) < set(whole)


def test_a_timeout_may_be_a_fraction(client: Client) -> None:
    started = begin(client, timeout=2.5).object

    assert started["timeout"] == 2.5
    assert started["expiresAt"] == started["startedAt"] + 2500


@pytest.mark.parametrize("timeout", [0, -1, 86401, 1e300, -0.0])
def test_a_timeout_out_of_range_is_refused(client: Client, timeout: float) -> None:
    refused(client.post(TRANSACTIONS, {"timeout": timeout}), 400, "invalid_timeout")


def test_the_longest_timeout_is_taken(client: Client) -> None:
    assert begin(client, timeout=86400).object["timeout"] == 86400


def test_a_long_transaction_has_the_long_timeout_and_takes_no_other(client: Client) -> None:
    started = begin(client, type="long").object

    assert (started["type"], started["timeout"]) == ("long", 86400)
    assert started["expiresAt"] == started["startedAt"] + 86_400_000
    refused(client.post(TRANSACTIONS, {"type": "long", "timeout": 5}), 400, "invalid_timeout")


@pytest.mark.parametrize(
    "body",
    [
        {"type": "medium"}, {"type": 1}, {"client": 7}, {"lists": "no"}, {"lists": 1},
        {"timeOut": 5}, {"name": "x"}, [], "x", 7,
    ],
)  # fmt: skip
def test_a_malformed_start_is_refused(client: Client, body: object) -> None:
    refused(client.post(TRANSACTIONS, body), 400, "bad_request")


@pytest.mark.parametrize("timeout", ["x", True, [], {}])
def test_a_timeout_that_is_no_number_is_refused(client: Client, timeout: object) -> None:
    reply = client.post(TRANSACTIONS, {"timeout": timeout})

    assert reply.status == 400
    assert reply.json["code"] in {"bad_request", "invalid_timeout"}


@pytest.mark.parametrize("timeout", [b"1e400", b"9" * 400, b"9" * 5_000, b"-1e400"])
@pytest.mark.parametrize("member", [b"timeout", b"lease"])
def test_a_time_beyond_all_numbers_is_out_of_range(
    client: Client, member: bytes, timeout: bytes
) -> None:
    """It was said to be no number of seconds, with the code of a malformed body."""
    body = b'{"type": "%b", "%b": %b}' % (
        b"long" if member == b"lease" else b"short",
        member,
        timeout,
    )

    refused(client.send("POST", TRANSACTIONS, body, content_type=JSON), 400, "invalid_timeout")


def test_a_refused_timeout_is_told_to_the_last_digit(client: Client) -> None:
    """86400.001 was refused as not being 86400."""
    reply = client.post(TRANSACTIONS, {"timeout": 86400.001})

    refused(reply, 400, "invalid_timeout", naming="86400.001")


def test_no_body_is_an_avro_datum_cut_short(client: Client) -> None:
    """It started a transaction."""
    reply = client.send("POST", TRANSACTIONS, content_type=AVRO)

    refused(reply, 400, "bad_request", naming=AVRO)


def test_no_body_means_an_empty_object(client: Client) -> None:
    reply = client.send("POST", TRANSACTIONS)

    assert reply.status == 201
    assert reply.json["type"] == "short"


def test_the_read_pointer_is_the_highest_pointer_that_had_ended(quiet: Client) -> None:
    for ending in ("commit", "abort", "invalidate"):
        tx = begin(quiet)
        pointer = ok(tx.checkpoint()).json["writePointer"]
        assert int(begin(quiet).object["readPointer"]) < int(tx.id)

        ok(getattr(tx, ending)())

        assert begin(quiet).object["readPointer"] == pointer


def test_an_invalid_long_transaction_does_not_move_the_read_pointer(quiet: Client) -> None:
    before = begin(quiet)
    ok(before.commit())
    for ending in ("invalidate", "abort"):
        tx = begin(quiet, type="long")

        ok(getattr(tx, ending)())

        started = begin(quiet).object
        assert started["readPointer"] == before.id
        assert tx.id in started["invalids"]


def test_an_earlier_end_does_not_move_the_read_pointer_back(quiet: Client) -> None:
    older, newer = begin(quiet), begin(quiet)
    ok(newer.commit())
    ok(older.commit())

    assert begin(quiet).object["readPointer"] == newer.id


def test_in_progress_holds_checkpoints_and_never_the_transaction_itself(quiet: Client) -> None:
    long_one, short_one = begin(quiet, type="long"), begin(quiet)
    checkpoint = ok(short_one.checkpoint()).json["writePointer"]

    started = begin(quiet).object

    assert started["inProgress"] == [long_one.id, short_one.id, checkpoint]
    assert started["firstShortInProgress"] == short_one.id


def test_invalids_hold_the_checkpoints_too(quiet: Client) -> None:
    tx = begin(quiet)
    checkpoint = ok(tx.checkpoint()).json["writePointer"]
    ok(tx.invalidate())

    started = begin(quiet).object

    assert started["invalids"][-2:] == [tx.id, checkpoint]
    assert started["inProgress"] == []


def test_an_ended_transaction_leaves_the_list_of_those_in_progress(quiet: Client) -> None:
    committed, aborted = begin(quiet), begin(quiet)
    ok(committed.commit())
    ok(aborted.abort())

    started = begin(quiet).object

    assert started["inProgress"] == []
    assert not {committed.id, aborted.id} & set(started["invalids"])


def test_a_checkpoint_gives_a_new_pointer_in_the_same_snapshot(client: Client) -> None:
    tx = begin(client, client="me")
    other = begin(client)
    ok(other.commit())

    first = ok(tx.checkpoint()).json
    second = ok(tx.checkpoint()).json

    assert first["transactionId"] == second["transactionId"] == tx.id
    assert first["checkpointWritePointers"] == [first["writePointer"]]
    assert second["checkpointWritePointers"] == [first["writePointer"], second["writePointer"]]
    assert int(tx.id) < int(first["writePointer"]) < int(second["writePointer"])
    for name in ("readPointer", "invalids", "inProgress", "firstShortInProgress", "expiresAt"):
        assert second[name] == tx.object[name]


def test_a_transaction_is_known_by_each_of_its_pointers(client: Client) -> None:
    tx = begin(client)
    pointer = ok(tx.checkpoint()).json["writePointer"]

    assert ok(client.get(f"{TRANSACTIONS}/{pointer}")).json == ok(tx.outcome()).json
    ok(client.post(f"{TRANSACTIONS}/{pointer}/commit"))
    assert tx.state() == "committed"


def test_a_transaction_past_its_time_is_invalid_within_a_second(client: Client) -> None:
    tx = begin(client, timeout=0.2)
    expires_ms = tx.object["expiresAt"]

    until(lambda: tx.state() == "invalid", within_s=3)

    assert time.time() * 1000 < expires_ms + 1500
    outcome = ok(tx.outcome()).json
    assert outcome["reason"] == "timed_out"
    assert tx.id in begin(client).object["invalids"]


def test_no_call_commits_a_transaction_past_its_time(client: Client) -> None:
    tx = begin(client, timeout=0.1)
    until(lambda: time.time() * 1000 > tx.object["expiresAt"] + 50)

    for reply in (tx.commit(), tx.can_commit("k"), tx.checkpoint(), tx.commit(readOnly=True)):
        assert refused(reply, 409, "transaction_timed_out")["reason"] == "timed_out"
