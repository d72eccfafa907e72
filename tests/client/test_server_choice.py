"""Which server of a cluster gets a call."""

import pytest

from tests.made_operations import found
from tuff.errors import (
    ClientClosedError,
    ConnectionLostError,
    ServerNotTrustedError,
    ServerUnreachableError,
)
from tuff.protocol.errors import (
    OverloadedError,
    OwnershipMovingError,
    ShuttingDownError,
    StartingError,
    StorageUnavailableError,
    TopicNotFoundError,
    TuffError,
)
from tuff.requests_and_responses import Request
from tuff.server_choice import OWNER_COUNT_MAX, TRANSACTIONS, Servers, subject_of

URLS = ["http://a:7411", "http://b:7411", "https://c/tuff"]
ORDERS = "t:shop:orders"

LOST = ConnectionLostError("lost", outcome_unknown=True)


@pytest.mark.parametrize(
    ("method", "path", "subject"),
    [
        ("GET", "/v1/namespaces/shop/topics/orders", ORDERS),
        ("POST", "/v1/namespaces/shop/topics/orders/publish", ORDERS),
        ("GET", "/v1/namespaces/shop/topics", None),
        ("GET", "/v1/namespaces", None),
        ("POST", "/v1/namespaces/shop/groups/billing/heartbeat", "g:shop:billing"),
        ("GET", "/v1/namespaces/shop/groups", None),
        ("POST", "/v1/transactions", TRANSACTIONS),
        ("POST", "/v1/transactions/17/commit", TRANSACTIONS),
        ("POST", "/v1/sinks/nightly/epochs/7", TRANSACTIONS),
        ("GET", "/v1/sinks", TRANSACTIONS),
        ("POST", "/v1/cluster/topics/shop/orders/move", None),
        ("GET", "/health/ready", None),
    ],
)
def test_topics_and_groups_have_an_owner_and_all_transactions_have_one(
    method: str, path: str, subject: str | None
) -> None:
    operation, parameters = found(method, path)

    assert subject_of(Request(operation=operation, parameters=parameters)) == subject


def test_the_first_address_is_used_first() -> None:
    assert Servers(URLS).in_order(ORDERS) == [0, 1, 2]


@pytest.mark.parametrize(
    "error",
    [LOST, ServerUnreachableError("a"), ShuttingDownError("stopping"), StartingError("starting")],
)
def test_after_a_failure_the_next_address_is_used_first(error: TuffError) -> None:
    servers = Servers(URLS)

    servers.failed(0, None, error)

    assert servers.in_order(None) == [1, 2, 0]


def test_after_the_last_address_comes_the_first() -> None:
    servers = Servers(URLS)

    for server in range(3):
        servers.failed(server, None, LOST)

    assert servers.in_order(None) == [0, 1, 2]


def test_calls_that_fail_together_leave_their_server_once() -> None:
    """Else the second of two waiting polls would leave the server that just took over."""
    servers = Servers(URLS)

    servers.failed(0, None, LOST)
    servers.failed(0, None, LOST)

    assert servers.current == 1


@pytest.mark.parametrize(
    "error",
    [
        ClientClosedError(),
        ServerNotTrustedError("a has an unknown certificate"),
        TopicNotFoundError("no"),
        OverloadedError("busy"),
        OwnershipMovingError("moving"),
        StorageUnavailableError("the disk is full"),
    ],
)
def test_a_server_that_answers_or_is_not_trusted_stays_in_use(error: TuffError) -> None:
    servers = Servers(URLS)

    servers.failed(0, ORDERS, error)

    assert servers.current == 0


@pytest.mark.parametrize("named", ["http://b:7411", "http://b:7411/", "HTTP://B:7411"])
def test_the_owner_that_a_reply_names_gets_the_next_call_about_the_same_topic(named: str) -> None:
    servers = Servers(URLS)

    servers.answered(ORDERS, named)

    assert servers.in_order(ORDERS) == [1, 0, 2]
    assert servers.in_order(TRANSACTIONS) == [0, 1, 2]


def test_an_owner_stays_known_while_replies_name_no_other() -> None:
    servers = Servers(URLS)
    servers.answered(ORDERS, "https://c/tuff")

    servers.answered(ORDERS, None)

    assert servers.in_order(ORDERS) == [2, 0, 1]


@pytest.mark.parametrize(
    "named", ["http://elsewhere", "https://b:7411", "http://c/tuff", "https://c/TUFF", "b:7411", ""]
)
def test_an_owner_that_is_no_address_of_the_client_gets_nothing(named: str) -> None:
    servers = Servers(URLS)
    servers.answered(ORDERS, "http://b:7411")

    servers.answered(ORDERS, named)

    assert servers.in_order(ORDERS) == [0, 1, 2]


@pytest.mark.parametrize("error", [LOST, OwnershipMovingError("moving")])
def test_an_owner_is_forgotten_when_it_is_lost_or_moves(error: TuffError) -> None:
    servers = Servers(URLS)
    servers.answered(ORDERS, "http://b:7411")

    servers.failed(1, ORDERS, error)

    assert servers.in_order(ORDERS) == [0, 1, 2]


def test_the_owners_that_are_remembered_are_bounded() -> None:
    servers = Servers(URLS)
    for number in range(OWNER_COUNT_MAX):
        servers.answered(f"{ORDERS}-{number}", "http://b:7411")
    assert servers.in_order(f"{ORDERS}-0") == [1, 0, 2]

    servers.answered(ORDERS, "http://b:7411")

    assert servers.in_order(f"{ORDERS}-0") == [0, 1, 2]
    assert servers.in_order(ORDERS) == [1, 0, 2]
