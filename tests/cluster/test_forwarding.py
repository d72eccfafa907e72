"""Each server answers for every topic: it forwards a request to the owner (decision 0042)."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.forwarding import proven_route, target_of, topic_route
from cluster.peers import Owner, Peers
from console.files import files
from kernel.requests_and_replies import Reply, Request, Route
from process.admission_and_dispatch import callee_of
from process.route_tree import RouteTree
from tests.cluster.nodes import (
    AUDIT,
    AUDIT_PATH,
    REQUEST_BYTES_MAX,
    Answered,
    Node,
    Owners,
    call,
    nodes,
)
from tests.cluster.raw_server import Behaviour, answer_half, closed_url, hang_up, raw_server, wait
from tests.made_operations import made
from tests.process.served import until
from tests.protocol.avro_messages import messages_in
from tuff.protocol.errors import (
    OwnershipMovingError,
    StorageOutcomeUnknownError,
    TopicNotFoundError,
    TransactionsUnavailableError,
    TransactionUnknownError,
    TuffError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import OPERATIONS, TOPIC_PATH, Operation

JSON = "application/json"
AVRO = "avro/binary"
ARROW = "application/vnd.apache.arrow.stream"


def problem(body: bytes) -> dict[str, object]:
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


# Those of a cluster are tested in test_routes.py.
SHARED = [each for each in OPERATIONS if each.tag != "cluster"]
FORWARDED = [each for each in SHARED if "{t}" in each.path or "{g}" in each.path or each.tag in
             ("transactions", "sinks")]  # fmt: skip
# A session and a backup begin with a request of their own kind; a wait names topics in its body.
LOCAL = [
    each
    for each in SHARED
    if each not in FORWARDED and each.name not in ("takeBackup", "beginSession", "waitForTopics")
]


@pytest.mark.parametrize("endpoint", FORWARDED, ids=lambda each: each.name)
async def test_each_endpoint_of_a_topic_or_of_transactions_is_answered_by_its_owner(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, endpoint: Operation
) -> None:
    front, owner = pair
    names = {"g": "g", "name": "x", "sink": "x", "epoch": "1", "id": "00" * 18, "file": "x"}
    names |= {"share": "x", "message": "00" * 20}
    path = endpoint.path.format(ns="default", t="audit", tx="17", **names)

    through = await call(session, endpoint.method, f"{front.url}{path}?bogus=1")
    direct = await call(session, endpoint.method, f"{owner.url}{path}?bogus=1")

    assert through.lasting == direct.lasting
    assert through.headers["tuff-owner"] == owner.url
    assert "tuff-owner" not in direct.headers
    assert (through.status, problem(through.body)["code"]) == (400, "bad_request")
    assert front.answered == []
    assert owner.answered == [f"{endpoint.method} {endpoint.path}"] * 2


@pytest.mark.parametrize("endpoint", LOCAL, ids=lambda each: each.name)
async def test_each_other_endpoint_is_answered_where_it_arrives(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, endpoint: Operation
) -> None:
    front, owner = pair
    path = endpoint.path.format(ns="default", version=files().version, file="app.js")

    answered = await call(session, endpoint.method, front.url + path)

    assert answered.status == endpoint.status
    assert "tuff-owner" not in answered.headers
    assert owner.answered == []


async def test_a_publish_and_a_read_through_another_server(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    body = b'{"messages":["a","b"]}'

    published = await call(
        session, "POST", f"{front.url}{AUDIT_PATH}/publish", body=body, Content_Type=JSON
    )
    through = await call(session, "GET", f"{front.url}{AUDIT_PATH}/messages")
    direct = await call(session, "GET", f"{owner.url}{AUDIT_PATH}/messages")

    assert published.status == 200
    ids = [each["id"] for each in json.loads(direct.body)]
    assert [published.headers["tuff-first-id"], published.headers["tuff-last-id"]] == ids
    assert published.headers["server"] == "tuff"
    assert [each["payload"] for each in json.loads(direct.body)] == ["a", "b"]
    assert "tuff-next" in through.headers
    assert through.lasting == direct.lasting


async def test_an_acknowledgement_level_passes_through_another_server(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair

    for ack in ("none", "received", "durable"):
        target = f"{front.url}{AUDIT_PATH}/publish?ack={ack}"
        body = b'{"messages":["%s"]}' % ack.encode()
        published = await call(session, "POST", target, body=body, Content_Type=JSON)
        assert (published.status, published.headers["tuff-ack"]) == (200, ack)
        assert ("tuff-first-id" in published.headers) == (ack != "none")

    direct = await call(session, "GET", f"{owner.url}{AUDIT_PATH}/messages")
    assert [each["payload"] for each in json.loads(direct.body)] == ["none", "received", "durable"]


async def test_a_topic_is_created_changed_and_deleted_through_another_server(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    orders = TopicId("shop", "orders")
    front.owners.of_topics[orders] = owner.owner
    path = f"{front.url}/v1/namespaces/shop/topics/orders"

    created = await call(session, "PUT", path, body=b'{"ttl":"60"}', Content_Type=JSON)
    again = await call(session, "PUT", path)
    held = await call(
        session, "PUT", f"{path}/holds/h", body=b'{"from":0,"maxAge":5}', Content_Type=JSON
    )
    deleted = await call(session, "DELETE", path)
    gone = await call(session, "GET", path)

    assert [created.status, again.status, held.status, deleted.status] == [200, 409, 200, 200]
    assert (gone.status, problem(gone.body)["code"]) == (404, "topic_not_found")
    assert front.owners.asked == [
        (orders, False, True), (orders, False, True), (orders, False, False),
        (orders, False, False), (orders, False, False),
    ]  # fmt: skip
    assert {asked[1] for asked in owner.owners.asked} == {True}
    assert owner.owners.changed == [orders] * 3  # created, refused as it exists, and deleted


async def test_a_transaction_runs_through_another_server(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    root = f"{front.url}/v1/transactions"

    started = await call(session, "POST", root, body=b"{}", Content_Type=JSON)
    pointer = json.loads(started.body)["transactionId"]
    ended = await call(session, "POST", f"{root}/{pointer}/abort")
    found = await call(session, "GET", f"{root}/{pointer}")
    direct = await call(session, "GET", f"{owner.url}/v1/transactions/{pointer}")

    assert (started.status, ended.status) == (201, 200)
    assert json.loads(found.body)["state"] == "aborted"
    assert found.lasting == direct.lasting
    assert started.headers["tuff-owner"] == owner.url


@pytest.mark.parametrize("accept", [JSON, AVRO, ARROW])
async def test_a_forwarded_reply_has_the_bytes_of_the_owner(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, accept: str
) -> None:
    front, owner = pair
    body = b'{"messages":["a",{"base64":"AP8="}]}'
    await call(session, "POST", f"{owner.url}{AUDIT_PATH}/publish", body=body, Content_Type=JSON)
    asked = {"body": b'{"limit":5}', "Content_Type": JSON, "Accept": accept}

    through = await call(session, "POST", f"{front.url}{AUDIT_PATH}/poll", **asked)
    direct = await call(session, "POST", f"{owner.url}{AUDIT_PATH}/poll", **asked)

    assert through.status == 200
    assert through.headers["content-type"].startswith(accept)
    assert through.lasting == direct.lasting


@pytest.mark.parametrize("accept", [f"{JSON}; schema=2", f"{AVRO}; schema=2", f"{JSON}; schema=7"])
async def test_the_schema_and_the_tags_of_a_request_reach_the_owner(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, accept: str
) -> None:
    front, owner = pair
    # Version 2: "a" with the tags x and y, and "b" without.
    datum = bytes.fromhex("0204026100040278027900000002620000000000")
    target = f"{front.url}{AUDIT_PATH}/publish"
    published = await call(
        session, "POST", target, body=datum, Content_Type=f"{AVRO}; schema=2", Accept=accept
    )
    asked = {"body": b"{}", "Content_Type": JSON, "Accept": accept}
    query = "poll?tags=z|x,y"

    through = await call(session, "POST", f"{front.url}{AUDIT_PATH}/{query}", **asked)
    direct = await call(session, "POST", f"{owner.url}{AUDIT_PATH}/{query}", **asked)

    assert through.status == published.status == (406 if "7" in accept else 200)
    assert through.lasting == direct.lasting
    assert through.headers["content-type"] == direct.headers["content-type"]
    if accept == f"{JSON}; schema=2":
        (message,) = json.loads(through.body)
        assert (message["payload"], message["tags"]) == ("a", ["x", "y"])


async def test_an_avro_body_is_forwarded_as_it_is(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    datum = bytes.fromhex("0204026104626300")

    published = await call(
        session, "POST", f"{front.url}{AUDIT_PATH}/publish", body=datum, Content_Type=AVRO
    )

    read = await call(session, "GET", f"{owner.url}{AUDIT_PATH}/messages")
    assert published.status == 200
    assert [each["payload"] for each in json.loads(read.body)] == ["a", "bc"]


async def test_a_body_of_the_largest_size_is_forwarded_and_a_larger_one_refused(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    empty = b'{"messages":[""]}'
    largest = empty.replace(b'""', b'"%b"' % (b"x" * (REQUEST_BYTES_MAX - len(empty))))
    target = f"{front.url}{AUDIT_PATH}/publish"

    published = await call(session, "POST", target, body=largest, Content_Type=JSON)
    refused = await call(session, "POST", target, body=largest + b" ", Content_Type=JSON)
    read = await call(session, "GET", f"{front.url}{AUDIT_PATH}/messages")

    assert published.status == 200
    assert (refused.status, problem(refused.body)["code"]) == (413, "request_too_large")
    (message,) = json.loads(read.body)
    assert len(message["payload"]) == REQUEST_BYTES_MAX - len(empty)
    assert owner.answered.count("POST /v1/namespaces/{ns}/topics/{t}/publish") == 1


async def test_escaped_names_reach_the_owner(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    at = "/v1/namespaces/d%65fault/topics/%61udit"

    shown = await call(session, "GET", f"{front.url}{at}")
    odd = await call(session, "GET", f"{front.url}{at}/positions/a%2Fb%3F%C3%A9%20")
    same = await call(session, "GET", f"{owner.url}{at}/positions/a%2Fb%3F%C3%A9%20")
    dots = await call(session, "GET", f"{front.url}{at}/positions/%2E%2E")

    assert json.loads(shown.body)["name"] == "audit"
    assert shown.headers["tuff-owner"] == owner.url
    assert (odd.status, problem(odd.body)["code"]) == (400, "invalid_name")
    assert odd.lasting == same.lasting
    assert "'..'" in str(problem(dots.body)["detail"])
    assert owner.answered.count("GET /v1/namespaces/{ns}/topics/{t}/positions/{name}") == 3


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SPECIAL = st.sampled_from(["..", ".", "%2e", "a/b", "?", "#", "+", " ", "%", "é", "\x00", "\r\n"])


async def answer_nothing(_request: Request) -> Reply:
    return Reply()


ROUTES = [
    Route(made("GET", "/v1/namespaces/{ns}/topics/{t}"), answer_nothing),
    Route(made("GET", "/v1/namespaces/{ns}/topics/{t}/holds/{name}"), answer_nothing),
]


@given(
    values=st.tuples(*[NAMES | SPECIAL] * 3),
    query=st.lists(st.tuples(NAMES | SPECIAL | st.just(""), NAMES | SPECIAL | st.just(""))),
    route=st.sampled_from(ROUTES),
)
def test_the_owner_reads_the_same_parameters_and_query(
    values: tuple[str, str, str], query: list[tuple[str, str]], route: Route
) -> None:
    names = [each[1:-1] for each in route.operation.path.split("/") if each.startswith("{")]
    parameters = dict(zip(names, values, strict=False))

    target = target_of(route.operation.path, Request(parameters, tuple(query), None, None, b""))
    method = route.operation.method.encode("ascii")
    found = RouteTree(map(callee_of, ROUTES)).find(method, target.encode("ascii"))

    assert (found.callee.operation, found.parameters) == (str(route.operation), parameters)
    assert found.query == tuple(query)


@pytest.mark.parametrize("name", ["a%20b", "%2E%2E", "x" * 129, "%FF"])
async def test_a_malformed_topic_is_refused_where_it_arrives(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, name: str
) -> None:
    front, owner = pair

    refused = await call(session, "GET", f"{front.url}/v1/namespaces/default/topics/{name}")

    assert (refused.status, problem(refused.body)["code"]) == (400, "invalid_name")
    assert "tuff-owner" not in refused.headers
    assert (front.owners.asked, owner.answered) == ([], [])


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", f"{AUDIT_PATH}/publish?ttl=5"),
        ("GET", f"{AUDIT_PATH}/messages?from=latest&limit=1"),
        ("POST", "/v1/transactions"),
        ("GET", "/v1/sinks/a%2Fb"),
    ],
)
async def test_a_client_that_wants_a_redirect_is_sent_to_the_owner(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, method: str, target: str
) -> None:
    front, owner = pair

    redirected = await call(session, method, front.url + target, Tuff_Redirect="1")
    at_owner = await call(session, method, owner.url + target, Tuff_Redirect="1")

    assert (redirected.status, redirected.body) == (307, b"")
    assert redirected.headers["location"] == owner.url + target
    assert redirected.headers["tuff-owner"] == owner.url
    assert at_owner.status != 307
    assert len(owner.answered) == 1


async def test_a_request_is_forwarded_once_at_most(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with nodes(tmp_path, 3) as (front, former, owner):
        for each, named in ((front, former), (former, owner)):
            each.owners.of_topics[AUDIT] = named.owner
            each.owners.leading = named.owner

        refused = await call(session, "GET", f"{front.url}{AUDIT_PATH}", Tuff_Redirect="0")
        not_led = await call(session, "POST", f"{front.url}/v1/transactions")

        for reply in (refused, not_led):
            assert (reply.status, problem(reply.body)["code"]) == (503, "ownership_moving")
            assert reply.headers["retry-after"] == "1"
            assert reply.headers["tuff-owner"] == former.url
            assert owner.url in str(problem(reply.body)["detail"])
        assert front.answered == former.answered == owner.answered == []


async def test_a_client_that_says_forwarded_gains_a_refusal(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair

    for more in ({}, {"Tuff_Redirect": "1"}):
        refused = await call(session, "GET", f"{front.url}{AUDIT_PATH}", Tuff_Forwarded="1", **more)
        assert (refused.status, problem(refused.body)["code"]) == (503, "ownership_moving")

    assert owner.answered == []


async def test_the_ownership_learns_whether_a_request_was_forwarded() -> None:
    """A server claims a topic without an owner only if no other one shall."""
    put = Route(made("PUT", "/v1/namespaces/{ns}/topics/{t}"), answer_nothing)
    owners = Owners()
    route = topic_route(
        put, lambda: SimpleNamespace(ownership=owners), Peers(spawn=lambda _work: None)
    )
    request = Request({"ns": "default", "t": "audit"}, (), None, None, b"")

    await route.handler(request)
    await route.handler(request._replace(is_forwarded=True))

    assert [is_forwarded for _, is_forwarded, _ in owners.asked] == [False, True]


async def test_without_a_leader_transactions_are_down_and_topics_are_not(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, _ = pair
    front.owners.leading = TransactionsUnavailableError("no server leads")

    refused = await call(session, "POST", f"{front.url}/v1/transactions")
    shown = await call(session, "GET", f"{front.url}{AUDIT_PATH}")

    assert (refused.status, problem(refused.body)["code"]) == (503, "transactions_unavailable")
    assert shown.status == 200


WRITE = ("POST", f"{AUDIT_PATH}/publish")
DELETE = ("DELETE", AUDIT_PATH)
READ = ("GET", AUDIT_PATH)
POLL = ("POST", f"{AUDIT_PATH}/poll")
LONG_POLL = ("POST", f"{AUDIT_PATH}/poll?wait=5")
COMMIT = ("POST", "/v1/transactions/17/commit")
OUTCOME = ("GET", "/v1/transactions/17")


@pytest.mark.parametrize("asked", [WRITE, DELETE, READ, POLL, LONG_POLL, COMMIT, OUTCOME])
async def test_an_owner_that_is_gone_before_the_request_executed_nothing(
    pair: tuple[Node, Node], session: aiohttp.ClientSession, asked: tuple[str, str]
) -> None:
    front, _ = pair
    gone = Owner("gone", await closed_url())
    front.owners.of_topics[AUDIT] = front.owners.leading = gone

    refused = await call(session, asked[0], front.url + asked[1])

    assert (refused.status, problem(refused.body)["code"]) == (503, "ownership_moving")
    assert refused.headers["retry-after"] == "1"
    assert "nothing was changed" in str(problem(refused.body)["detail"])
    assert "tuff-owner" not in refused.headers


@pytest.mark.parametrize("ending", [hang_up, answer_half], ids=["no reply", "half a reply"])
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (WRITE, "storage_outcome_unknown"),
        (DELETE, "storage_outcome_unknown"),
        (READ, "ownership_moving"),
        (POLL, "ownership_moving"),
        (LONG_POLL, "ownership_moving"),
        (COMMIT, "transactions_unavailable"),
        (OUTCOME, "ownership_moving"),
    ],
)
async def test_an_owner_that_is_lost_during_a_write_may_have_executed_it(
    pair: tuple[Node, Node],
    session: aiohttp.ClientSession,
    ending: Behaviour,
    asked: tuple[str, str],
    code: str,
) -> None:
    front, _ = pair
    async with raw_server(ending) as lost:
        front.owners.of_topics[AUDIT] = front.owners.leading = Owner("lost", lost.url)

        refused = await call(session, asked[0], front.url + asked[1])

        assert (refused.status, problem(refused.body)["code"]) == (503, code)
        assert refused.headers["retry-after"] == "1"
        in_doubt = "this may or may not have been carried out" in str(problem(refused.body))
        assert in_doubt == (code != "ownership_moving")
        assert lost.url in str(problem(refused.body)["detail"])
        assert len(lost.heard) == 1


@pytest.mark.parametrize("target", [f"{AUDIT_PATH}/poll?wait=30", f"{AUDIT_PATH}/messages?wait=30"])
@pytest.mark.parametrize("escape", ["audit", "%61udit"], ids=["plain", "parsed"])
async def test_a_forwarded_long_poll_ends_with_the_connection_of_its_client(
    pair: tuple[Node, Node], target: str, escape: str
) -> None:
    front, owner = pair
    method = "POST" if "/poll" in target else "GET"
    _, writer = await asyncio.open_connection("127.0.0.1", front.port)
    line = f"{method} {target.replace('audit', escape)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    writer.write(line.encode())
    await until(lambda: owner.components.messaging.polls.waiting_count == 1)
    assert front.peers.polls_count == 1

    writer.close()
    await writer.wait_closed()

    await until(lambda: owner.components.messaging.polls.waiting_count == 0)
    await until(lambda: front.peers.polls_count == 0)
    assert front.components._admission.under_way == 0


async def test_a_forwarded_long_poll_returns_what_arrives(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    asked = call(session, "GET", f"{front.url}{AUDIT_PATH}/messages?wait=30")
    waiting = asyncio.get_running_loop().create_task(asked)
    await until(lambda: owner.components.messaging.polls.waiting_count == 1)

    body = b'{"messages":["late"]}'
    await call(session, "POST", f"{front.url}{AUDIT_PATH}/publish", body=body, Content_Type=JSON)

    assert [each["payload"] for each in json.loads((await waiting).body)] == ["late"]


async def test_a_write_goes_on_when_its_client_has_disconnected(
    pair: tuple[Node, Node],
) -> None:
    front, _ = pair
    async with raw_server(wait) as owner:
        front.owners.of_topics[AUDIT] = Owner("slow", owner.url)
        _, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(f"POST {AUDIT_PATH}/publish HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: len(owner.heard) == 1)

        writer.close()
        await writer.wait_closed()
        await until(lambda: front.connections_count == 0)

        assert owner.closed_count == 0
        assert front.components._admission.under_way == 1
        await front.peers.close()
        await until(lambda: front.components._admission.under_way == 0)


# --- a server that can't prove that it is a member -----------------------------------------------

READ, WRITE = ("GET", f"{TOPIC_PATH}/messages"), ("POST", f"{TOPIC_PATH}/publish")
COMMIT = ("POST", "/v1/transactions/{tx}/commit")


class Suspending:
    """A route of a server whose session may run out while a request is under way."""

    def __init__(self, method: str, path: str, *, proven: tuple[bool, ...], fails: bool) -> None:
        """`proven`: the answers, one after the other, whether the server is a member."""
        self._proven = list(proven)
        self._fails = fails
        self.executed_count = 0
        self._route = proven_route(
            Route(made(method, path), self._execute), lambda: self._proven.pop(0), _leads
        )

    async def ask(self) -> Reply | type[TuffError]:
        """What a client gets."""
        try:
            return await self._route.handler(Request({}, (), None, None, b""))
        except TuffError as error:
            return type(error)

    async def _execute(self, _request: Request) -> Reply:
        self.executed_count += 1
        if self._fails:
            raise TopicNotFoundError("there is no topic")
        return Reply(200)


@pytest.mark.parametrize("operation", [READ, WRITE, COMMIT])
async def test_a_suspended_server_executes_nothing(operation: tuple[str, str]) -> None:
    suspended = Suspending(*operation, proven=(False,), fails=False)

    assert await suspended.ask() is OwnershipMovingError
    assert suspended.executed_count == 0


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (READ, OwnershipMovingError),
        (WRITE, StorageOutcomeUnknownError),
        (COMMIT, TransactionsUnavailableError),
    ],
)
async def test_a_server_that_is_suspended_meanwhile_acknowledges_nothing(
    operation: tuple[str, str], error: type[TuffError], fails: bool
) -> None:
    suspended = Suspending(*operation, proven=(True, False), fails=fails)

    assert await suspended.ask() is error
    assert suspended.executed_count == 1


@pytest.mark.parametrize(("fails", "answer"), [(True, TopicNotFoundError), (False, Reply(200))])
async def test_a_member_answers_what_its_route_says(fails: bool, answer: object) -> None:
    suspended = Suspending(*WRITE, proven=(True, True), fails=fails)

    assert await suspended.ask() == answer


@pytest.mark.parametrize("leads", [True, False])
async def test_only_the_leader_says_that_a_transaction_is_unknown(leads: bool) -> None:
    async def execute(_request: Request) -> Reply:
        raise TransactionUnknownError("no transaction 7 is remembered")

    async def require_leading() -> None:
        if not leads:
            raise TransactionsUnavailableError("another server leads")

    route = proven_route(Route(made(*COMMIT), execute), lambda: True, require_leading)

    with pytest.raises(TransactionUnknownError if leads else TransactionsUnavailableError):
        await route.handler(Request({}, (), None, None, b""))


async def _leads() -> None:
    pass


async def test_a_wait_for_topics_of_two_servers_ends_with_a_message_of_either(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    mine = TopicId("default", "mine")
    await front.components.messaging.topics.create(mine, {})
    first = "00" * 20
    topics = {name: {"after": {"0": first}} for name in ("mine", "audit")}
    body = json.dumps({"topics": topics}).encode()

    async def asked(wait_s: int, **headers: str) -> Answered:
        url = f"{front.url}/v1/namespaces/default/wait?wait={wait_s}"
        return await call(session, "POST", url, body=body, Content_Type=JSON, **headers)

    assert json.loads((await asked(0)).body) == {"partitions": []}
    for node, topic in ((owner, AUDIT), (front, mine)):
        waiting = asyncio.ensure_future(asked(30))
        await until(lambda: node.components.messaging.polls.waiting_count > 0)  # noqa: B023 - at once
        url = f"{node.url}/v1/namespaces/default/topics/{topic.name}/publish"
        await call(session, "POST", url, body=b'{"messages":["a"]}', Content_Type=JSON)

        assert f"{topic.name}:0" in json.loads((await waiting).body)["partitions"]
        brought = await asked(0, Accept="avro/binary")
        assert brought.headers["tuff-partition"] == f"{topic.name}:0"
        assert [payload for _, payload in messages_in(brought.body)] == [b"a"]
        topics.pop(topic.name)
        body = json.dumps({"topics": topics}).encode()
