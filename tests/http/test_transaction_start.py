"""Starting transactions and what a start answers (protocol §5.1, §5.2)."""

import base64
import time

import pytest

from tests.http.calls import TRANSACTIONS, begin
from tests.http.client import AVRO, JSON, Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.forms import transaction_bytes

NO_SHORT = "9223372036854775807"
CLOCK_SLACK_MS = 60_000  # on a busy machine


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


def test_the_lists_of_a_start_hold_pointers_in_progress_and_invalid_ones(
    new_server: NewServer,
) -> None:
    client = new_server().client()
    first = begin(client).object
    assert (first["invalids"], first["inProgress"]) == ([], [])
    assert first["firstShortInProgress"] == NO_SHORT
    assert int(first["readPointer"]) < int(first["writePointer"])
    ok(client.post(f"{TRANSACTIONS}/{first['transactionId']}/abort"))

    long_one, invalid, short_one = begin(client, type="long"), begin(client), begin(client)
    inside = ok(invalid.checkpoint()).json["writePointer"]
    beside = ok(short_one.checkpoint()).json["writePointer"]
    ok(invalid.invalidate())
    started = begin(client).object
    ok(begin(client).commit())
    newest = begin(client).object

    assert started["invalids"] == [invalid.id, inside]
    assert started["inProgress"] == [long_one.id, short_one.id, beside]
    assert started["firstShortInProgress"] == short_one.id
    assert started["readPointer"] == inside
    assert newest["inProgress"] == [*started["inProgress"], started["transactionId"]]
    assert int(newest["readPointer"]) > int(started["transactionId"])
    short = begin(client, lists=False).object
    assert set(newest) - set(short) == {"invalids", "inProgress", "encoded"}
    assert set(short) < set(newest)


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


@pytest.mark.parametrize("timeout", [2.5, 86400])
def test_a_timeout_is_up_to_a_day_and_may_be_a_fraction(client: Client, timeout: float) -> None:
    started = begin(client, timeout=timeout).object

    assert started["timeout"] == timeout
    assert started["expiresAt"] == started["startedAt"] + timeout * 1000


def test_a_long_transaction_has_the_long_timeout_and_takes_no_other(client: Client) -> None:
    started = begin(client, type="long").object

    assert (started["type"], started["timeout"]) == ("long", 86400)
    assert started["expiresAt"] == started["startedAt"] + 86_400_000
    refused(client.post(TRANSACTIONS, {"type": "long", "timeout": 5}), 400, "invalid_timeout")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"type": "medium"}, "bad_request"),
        ({"client": 7}, "bad_request"),
        ({"lists": 1}, "bad_request"),
        ({"timeOut": 5}, "bad_request"),
        ({"timeout": "x"}, "bad_request"),
        ([], "bad_request"),
        ({"timeout": 0}, "invalid_timeout"),
        ({"timeout": 1e300}, "invalid_timeout"),
    ],
)
def test_a_malformed_start_is_refused(client: Client, body: object, code: str) -> None:
    refused(client.post(TRANSACTIONS, body), 400, code)


@pytest.mark.parametrize("timeout", [b"1e400", b"9" * 400, b"9" * 5_000, b"-1e400"])
@pytest.mark.parametrize(("member", "kind"), [(b"timeout", b"short"), (b"lease", b"long")])
def test_a_timeout_or_lease_that_no_double_holds_is_out_of_range(
    client: Client, member: bytes, kind: bytes, timeout: bytes
) -> None:
    """It was said to be no number of seconds, with the code of a malformed body."""
    body = b'{"type": "%b", "%b": %b}' % (kind, member, timeout)

    refused(client.send("POST", TRANSACTIONS, body, content_type=JSON), 400, "invalid_timeout")


def test_a_refused_timeout_is_told_to_the_last_digit(client: Client) -> None:
    """86400.001 was refused as not being 86400."""
    reply = client.post(TRANSACTIONS, {"timeout": 86400.001})

    refused(reply, 400, "invalid_timeout", naming="86400.001")


def test_no_body_means_an_empty_object_and_is_an_avro_datum_cut_short(client: Client) -> None:
    """The datum started a transaction."""
    reply = client.send("POST", TRANSACTIONS)

    assert (reply.status, reply.json["type"]) == (201, "short")
    refused(client.send("POST", TRANSACTIONS, content_type=AVRO), 400, "bad_request", naming=AVRO)


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
    by_pointer = f"{TRANSACTIONS}/{first['writePointer']}"
    assert ok(client.get(by_pointer)).json == ok(tx.outcome()).json
    ok(client.post(f"{by_pointer}/commit"))
    assert tx.state() == "committed"


def test_a_transaction_past_its_time_becomes_invalid(client: Client) -> None:
    tx = begin(client, timeout=0.2)

    until(lambda: tx.state() == "invalid")

    outcome = ok(tx.outcome()).json
    assert outcome["reason"] == "timed_out"
    assert tx.id in begin(client).object["invalids"]
    for reply in (tx.commit(), tx.can_commit("k"), tx.checkpoint(), tx.commit(readOnly=True)):
        assert refused(reply, 409, "transaction_timed_out")["reason"] == "timed_out"
