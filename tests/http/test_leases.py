"""Leases over HTTP, and over a kill of the server (protocol §5.3)."""

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin
from tests.http.client import Client, ok, refused

LEASE = {"lease", "leaseExpiresAt"}


def renew(client: Client, tx: Tx | str) -> dict[str, int]:
    one = tx.id if isinstance(tx, Tx) else tx
    found: dict[str, int] = ok(client.post(f"{TRANSACTIONS}/{one}/renew")).json
    return found


def test_a_lease_is_shown_with_its_transaction_and_with_no_other(client: Client) -> None:
    leased, plain = begin(client, type="long", lease=600), begin(client, type="long")

    renewed = renew(client, leased)

    listed = {one["transactionId"]: one for one in ok(client.get(TRANSACTIONS)).json["inProgress"]}
    for told in (leased.object, ok(leased.outcome()).json, listed[leased.id]):
        assert told["lease"] == 600
        assert told["leaseExpiresAt"] >= leased.object["startedAt"] + 600_000
    assert renewed["leaseExpiresAt"] >= leased.object["leaseExpiresAt"]
    assert renewed["expiresAt"] == leased.object["expiresAt"]
    for told in (plain.object, ok(plain.outcome()).json, listed[plain.id]):
        assert LEASE.isdisjoint(told)
    ok(leased.invalidate())
    assert LEASE.isdisjoint(ok(leased.outcome()).json)
    refused(client.post(f"{leased.path}/renew"), 409, "transaction_invalidated")


def test_a_checkpoint_pointer_renews_too_and_its_object_has_the_lease(client: Client) -> None:
    leased = begin(client, type="long", lease=2.5)

    checked = ok(leased.checkpoint()).json

    assert checked["lease"] == 2.5
    assert renew(client, checked["writePointer"])["leaseExpiresAt"] >= checked["leaseExpiresAt"]
    ok(leased.abort())


def test_the_object_of_a_leased_one_is_taken_as_a_snapshot(client: Client, topic: Topic) -> None:
    leased = begin(client, type="long", lease=60)
    ok(topic.publish("own", tx=leased.id))

    assert topic.read({"transaction": leased.object}) == ["own"]
    ok(leased.abort())


@pytest.mark.parametrize("lease", [0, -1, 3600.5, 1e300])
def test_a_lease_out_of_range_is_refused(client: Client, lease: float) -> None:
    refused(client.post(TRANSACTIONS, {"type": "long", "lease": lease}), 400, "invalid_timeout")


def test_only_a_long_transaction_has_a_lease(client: Client) -> None:
    refused(client.post(TRANSACTIONS, {"lease": 5}), 400, "invalid_timeout", naming="long")
    short = begin(client, lease=None)

    refused(client.post(f"{short.path}/renew"), 400, "bad_request", naming=short.id)
    refused(client.post(f"{TRANSACTIONS}/1/renew"), 404, "transaction_unknown")
    ok(short.abort())


@pytest.mark.parametrize("lease", ["5", True, [], {}])
def test_a_lease_that_is_no_number_is_refused(client: Client, lease: object) -> None:
    refused(client.post(TRANSACTIONS, {"type": "long", "lease": lease}), 400, "bad_request")
