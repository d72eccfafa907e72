"""Leases over HTTP (protocol §5.3)."""

import pytest

from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import Client, ok, refused

LEASE = {"lease", "leaseExpiresAt"}


def test_a_lease_is_shown_with_its_transaction_and_with_no_other(
    client: Client, topic: Topic
) -> None:
    leased, plain = begin(client, type="long", lease=2.5), begin(client, type="long")

    renewed = ok(client.post(f"{leased.path}/renew")).json

    listed = {one["transactionId"]: one for one in ok(client.get(TRANSACTIONS)).json["inProgress"]}
    for told in (leased.object, ok(leased.outcome()).json, listed[leased.id]):
        assert told["lease"] == 2.5
        assert told["leaseExpiresAt"] >= leased.object["startedAt"] + 2_500
    assert renewed["leaseExpiresAt"] >= leased.object["leaseExpiresAt"]
    assert renewed["expiresAt"] == leased.object["expiresAt"]
    for told in (plain.object, ok(plain.outcome()).json, listed[plain.id]):
        assert LEASE.isdisjoint(told)
    checked = ok(leased.checkpoint()).json
    assert checked["lease"] == 2.5
    by_pointer = ok(client.post(f"{TRANSACTIONS}/{checked['writePointer']}/renew")).json
    assert by_pointer["leaseExpiresAt"] >= checked["leaseExpiresAt"]
    ok(topic.publish("own", tx=leased.id))
    assert topic.read({"transaction": leased.object}) == ["own"]
    ok(leased.invalidate())
    assert LEASE.isdisjoint(ok(leased.outcome()).json)
    refused(client.post(f"{leased.path}/renew"), 409, "transaction_invalidated")


@pytest.mark.parametrize(
    ("lease", "code"),
    [
        (0, "invalid_timeout"),
        (3600.5, "invalid_timeout"),
        (1e300, "invalid_timeout"),
        ("5", "bad_request"),
        (True, "bad_request"),
        ([], "bad_request"),
    ],
)
def test_a_lease_that_can_not_be_is_refused(client: Client, lease: object, code: str) -> None:
    refused(client.post(TRANSACTIONS, {"type": "long", "lease": lease}), 400, code)


def test_a_transaction_without_a_lease_can_not_be_renewed(client: Client) -> None:
    short = begin(client, lease=None)

    refused(client.post(f"{short.path}/renew"), 400, "bad_request", naming=short.id)
    refused(client.post(f"{TRANSACTIONS}/1/renew"), 404, "transaction_unknown")
