"""What an operator sees of a cluster, and how topics move (protocol §7.1)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import aiohttp
import pytest

from cluster import operator_routes as routes
from metadata.store_interface import MetadataStore
from tests.cluster.nodes import Answered, call
from tests.cluster.operated import CLUSTER_ID, STARTED_MS, Server, operated
from tests.metadata.memory_store import MemoryMetadataStore
from tests.process.served import until
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import OPERATIONS, Operation

JSON = "application/json"
OF_CLUSTER = [each for each in OPERATIONS if each.tag == "cluster"]


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    store = MemoryMetadataStore()
    yield store
    store.close()


@pytest.fixture
async def servers(store: MetadataStore) -> AsyncIterator[list[Server]]:
    async with operated(store, "s1", "s2", "s3") as made:
        yield made


async def get(session: aiohttp.ClientSession, server: Server, path: str) -> object:
    reply = await call(session, "GET", server.url + path)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def post(
    session: aiohttp.ClientSession, server: Server, path: str, server_id: str, **headers: str
) -> Answered:
    body = json.dumps({"server": server_id}).encode()
    url = f"{server.url}/v1/cluster{path}"
    return await call(session, "POST", url, body=body, Content_Type=JSON, **headers)


def refusal(reply: Answered) -> tuple[int, str, str]:
    found = json.loads(reply.body)
    return reply.status, found["code"], found["detail"]


async def owners(session: aiohttp.ClientSession, server: Server) -> dict[str, str | None]:
    found = await get(session, server, "/v1/cluster/topics")
    return {each["topic"]: each["server"] for each in found["topics"]}


async def test_any_server_shows_the_cluster(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[1].claim("a", "b")
    urls = [each.url for each in servers]

    shown = await get(session, servers[2], "/v1/cluster")

    rest = {"incarnation": 1, "startedAt": STARTED_MS, "isDraining": False}
    assert shown == {
        "clusterId": CLUSTER_ID,
        "server": {"id": "s3", "incarnation": 1},
        "leader": {"id": "s1", "epoch": 1, "url": urls[0]},
        "servers": [
            {"id": "s1", "url": urls[0], "topics": 0, **rest},
            {"id": "s2", "url": urls[1], "topics": 2, **rest},
            {"id": "s3", "url": urls[2], "topics": 0, **rest},
        ],
    }


async def test_the_owners_of_topics_are_listed_in_pages(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[0].claim("b", "d")
    await servers[1].claim("a", "c")

    first = await get(session, servers[2], "/v1/cluster/topics?limit=3")
    second = await get(session, servers[2], "/v1/cluster/topics?limit=3&after=shop:c")
    of_one = await get(session, servers[2], "/v1/cluster/topics?server=s2")

    rest = {"incarnation": 1, "epoch": 1, "isAlive": True}
    assert first == {
        "topics": [
            {"topic": "shop:a", "server": "s2", **rest},
            {"topic": "shop:b", "server": "s1", **rest},
            {"topic": "shop:c", "server": "s2", **rest},
        ],
        "next": "shop:c",
    }
    assert second == {"topics": [{"topic": "shop:d", "server": "s1", **rest}], "next": None}
    assert [each["topic"] for each in of_one["topics"]] == ["shop:a", "shop:c"]
    assert of_one["next"] is None


async def test_an_owner_that_ended_is_not_alive_and_neither_is_its_former_incarnation(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[1].claim("a")
    membership = servers[1].joined.membership
    membership.metadata_session.close()

    ended = await get(session, servers[0], "/v1/cluster/topics")
    membership.join(new_cluster_id=CLUSTER_ID, session_s=60.0, lost=lambda: None)
    started = await get(session, servers[0], "/v1/cluster/topics")

    assert ended["topics"][0]["isAlive"] is started["topics"][0]["isAlive"] is False


async def test_listings_have_the_topics_of_all_servers_and_no_deleted_one(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[0].claim("b", "gone", "billing:group")
    await servers[1].claim("a")
    await servers[2].joined.ownership.owner_of(
        TopicId("audit", "x"), is_forwarded=True, creates=True
    )
    servers[0].loaded.topics.remove(TopicId("shop", "gone"))
    await servers[0].joined.ownership.note_change(TopicId("shop", "gone"))

    assert await get(session, servers[2], "/v1/namespaces") == ["audit", "shop"]
    assert await get(session, servers[2], "/v1/namespaces/shop/topics") == ["a", "b"]
    assert await get(session, servers[2], "/v1/namespaces/empty/topics") == []
    assert await get(session, servers[2], "/v1/namespaces/shop/groups") == ["billing"]


async def test_a_topic_is_moved_through_any_server(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[0].claim("a", "b")

    moved = await post(session, servers[2], "/topics/shop/a/move", "s2")

    assert (moved.status, json.loads(moved.body)) == (200, {"topic": "shop:a", "server": "s2"})
    assert moved.headers["tuff-owner"] == servers[0].url
    assert await owners(session, servers[2]) == {"shop:a": "s2", "shop:b": "s1"}
    await call(session, "GET", f"{servers[0].url}/v1/namespaces/shop/topics/a")
    assert servers[1].answered == ["a"]
    assert servers[1].loaded.topics == {TopicId("shop", "a")}


async def test_a_server_that_remembers_a_former_owner_asks_again(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    """It forwarded to the former owner for ever, which refused each request."""
    await servers[0].claim("a")
    path = f"{servers[2].url}/v1/namespaces/shop/topics/a"
    assert (await call(session, "GET", path)).headers["tuff-owner"] == servers[0].url
    await post(session, servers[0], "/topics/shop/a/move", "s2")
    await servers[1].claim("a")  # the new owner has served it already

    found = await call(session, "GET", path)

    assert (found.status, found.headers["tuff-owner"]) == (200, servers[1].url)


async def test_a_server_with_more_topics_serves_what_it_was_given(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    """It sent each request to a server with fewer topics, which refused: the record named the
    first one."""
    await servers[0].claim("a")
    await servers[1].claim("b", "c", "d")
    await post(session, servers[0], "/topics/shop/a/move", "s2")
    await servers[1].look()

    shown = await call(session, "GET", f"{servers[1].url}/v1/namespaces/shop/topics/a")

    assert shown.status == 200
    assert servers[1].answered == ["a"]


async def test_topics_that_were_given_to_a_server_or_to_nobody_are_claimed_without_a_request(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    """Their retention needs an owner."""
    await servers[0].claim("a", "b")
    await post(session, servers[0], "/topics/shop/a/move", "s2")
    of_b = servers[0].joined.owners.read_owner_info(TopicId("shop", "b"))
    assert of_b is not None
    servers[0].joined.owners.write_owner_info(
        TopicId("shop", "b"), replace(of_b.value, server_id=None), of_b.version
    )
    del servers[0].joined.ownership._owned[TopicId("shop", "b")]

    for each in servers:
        await each.joined.ownership.adopt()

    assert TopicId("shop", "a") in servers[1].joined.ownership.topics()
    owners_of_b = [
        each for each in servers if TopicId("shop", "b") in each.joined.ownership.topics()
    ]
    assert len(owners_of_b) == 1


@pytest.mark.parametrize(
    ("server_id", "status", "code", "said"),
    [
        ("s1", 409, "topic_not_movable", "the topic shop:a is at the server s1 already"),
        ("s9", 404, "server_not_found",
         "there is no live server s9 in the cluster; there are s1, s2, s3"),
        ("s3", 409, "topic_not_movable",
         "the server s3 is draining, and takes no topics; choose another one, or undrain it first"),
    ],
)  # fmt: skip
async def test_a_topic_that_can_not_move_says_why(
    servers: list[Server],
    session: aiohttp.ClientSession,
    server_id: str,
    status: int,
    code: str,
    said: str,
) -> None:
    await servers[0].claim("a")
    servers[2].joined.ownership.is_draining = True
    await servers[2].look()

    refused = await post(session, servers[1], "/topics/shop/a/move", server_id)

    assert refusal(refused) == (status, code, said)
    assert await owners(session, servers[1]) == {"shop:a": "s1"}


async def test_a_name_that_was_never_created_can_not_move_and_is_not_claimed(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    refused = await post(session, servers[1], "/topics/shop/never/move", "s2")

    assert refusal(refused)[:2] == (404, "topic_not_found")
    assert await owners(session, servers[1]) == {}


async def test_a_drained_server_has_given_all_its_topics_to_the_others(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[0].claim("a", "b", "c")

    drained = await post(session, servers[1], "/drain?wait=30", "s1")

    assert json.loads(drained.body) == {"server": "s1", "isDraining": True, "topics": 0}
    assert set((await owners(session, servers[1])).values()) <= {"s2", "s3"}
    shown = await get(session, servers[1], "/v1/cluster")
    assert [each["isDraining"] for each in shown["servers"]] == [True, False, False]


async def test_a_drain_goes_on_behind_the_wait_and_behind_a_topic_that_is_stuck(
    servers: list[Server],
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.draining.ROUND_S", 0.01)
    await servers[0].claim("a", "b")
    servers[0].loaded.stuck.add(TopicId("shop", "a"))

    waited = await post(session, servers[0], "/drain?wait=0.3", "s1")
    assert json.loads(waited.body) == {"server": "s1", "isDraining": True, "topics": 1}
    servers[0].loaded.stuck.clear()

    await until(lambda: not servers[0].loaded.topics)
    again = await post(session, servers[0], "/drain", "s1")
    assert json.loads(again.body)["topics"] == 0


async def test_a_topic_that_another_server_still_gives_is_given_away_too(
    servers: list[Server],
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.draining.ROUND_S", 0.01)
    await post(session, servers[0], "/drain?wait=1", "s1")

    await servers[1].claim("late")
    await servers[1].joined.ownership.move(TopicId("shop", "late"), "s1")
    await servers[0].claim("late")
    assert servers[0].joined.ownership.claimed_count == 1

    await until(lambda: not servers[0].loaded.topics)


async def test_an_undrained_server_takes_topics_and_goes_on_with_none_of_the_drain(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[0].claim("a")
    servers[0].loaded.stuck.add(TopicId("shop", "a"))
    waiting = asyncio.get_running_loop().create_task(
        post(session, servers[0], "/drain?wait=60", "s1")
    )
    await until(lambda: servers[0].joined.ownership.is_draining)

    undrained = await post(session, servers[1], "/undrain", "s1")

    ended = {"server": "s1", "isDraining": False, "topics": 1}
    assert json.loads(undrained.body) == ended
    assert json.loads((await waiting).body) == ended
    shown = await get(session, servers[1], "/v1/cluster")
    assert [each["isDraining"] for each in shown["servers"]] == [False, False, False]


async def test_the_last_server_that_takes_topics_is_not_drained(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    for name in ("s1", "s2"):
        await post(session, servers[0], "/drain", name)
    await until(lambda: servers[1].joined.ownership.is_draining)
    await servers[1].look()

    refused = await post(session, servers[0], "/drain", "s3")

    assert refusal(refused) == (
        409,
        "topic_not_movable",
        "no other server of the cluster takes topics, so s3 keeps its own; start or undrain "
        "another one first",
    )
    assert not servers[2].joined.ownership.is_draining


@pytest.mark.parametrize("path", ["/drain", "/undrain"])
async def test_a_server_that_is_not_there_can_not_be_drained(
    servers: list[Server], session: aiohttp.ClientSession, path: str
) -> None:
    refused = await post(session, servers[0], path, "s9")
    forwarded = await post(session, servers[0], path, "s2", Tuff_Forwarded="1")

    assert refusal(refused)[:2] == (404, "server_not_found")
    assert refusal(forwarded)[:2] == (503, "ownership_moving")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=0", "limit"), ("limit=x", "limit"), ("limit=-1", "limit"),
        ("after=shop", "after"), ("after=a%20b:c", "a b"), ("bogus=1", "bogus"),
    ],
)  # fmt: skip
async def test_a_query_that_is_not_possible_is_named(
    servers: list[Server], session: aiohttp.ClientSession, query: str, named: str
) -> None:
    refused = await call(session, "GET", f"{servers[0].url}/v1/cluster/topics?{query}")

    assert refused.status == 400
    assert named in refusal(refused)[2]


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "soon"])
async def test_a_wait_that_is_not_possible_drains_nothing(
    servers: list[Server], session: aiohttp.ClientSession, wait: str
) -> None:
    refused = await post(session, servers[0], f"/drain?wait={wait}", "s1")

    assert refusal(refused)[:2] == (400, "bad_request")
    assert not servers[0].joined.ownership.is_draining


@pytest.mark.parametrize("body", [b"", b"{}", b'{"server":7}', b'{"server":"s1","x":1}', b"[]"])
async def test_a_body_that_names_no_server_is_refused(
    servers: list[Server], session: aiohttp.ClientSession, body: bytes
) -> None:
    url = f"{servers[0].url}/v1/cluster/drain"

    refused = await call(session, "POST", url, body=body, Content_Type=JSON)

    assert refusal(refused)[:2] == (400, "bad_request")


@pytest.mark.parametrize("endpoint", OF_CLUSTER, ids=lambda each: each.name)
async def test_a_call_names_a_parameter_that_it_does_not_know(
    servers: list[Server], session: aiohttp.ClientSession, endpoint: Operation
) -> None:
    await servers[0].claim("a")
    url = servers[0].url + endpoint.path.format(ns="shop", t="a")
    body = b'{"server":"s1"}' if endpoint.method == "POST" else None

    refused = await call(session, endpoint.method, f"{url}?bogus=1", body=body, Content_Type=JSON)

    assert refusal(refused)[:2] == (400, "bad_request")
    assert "bogus" in refusal(refused)[2]


async def test_metadata_that_can_not_be_read_are_a_refusal_with_the_reason(
    store: MetadataStore, servers: list[Server], session: aiohttp.ClientSession
) -> None:
    store.close()

    for path in ("/v1/cluster", "/v1/cluster/topics", "/v1/namespaces", "/v1/namespaces/a/topics"):
        refused = await call(session, "GET", servers[0].url + path)
        assert refusal(refused)[:2] == (503, "storage_unavailable")
        assert "the metadata of the cluster can't be read now" in refusal(refused)[2]


async def test_metrics_count_what_a_server_does_in_its_cluster(
    servers: list[Server], session: aiohttp.ClientSession
) -> None:
    await servers[0].claim("a", "b")
    await post(session, servers[0], "/topics/shop/a/move", "s2")
    path = f"{servers[0].url}/v1/namespaces/shop/topics/a"
    await call(session, "GET", path)
    await call(session, "GET", path, Tuff_Redirect="1")
    await call(session, "GET", path, Tuff_Forwarded="1")

    text = (await call(session, "GET", f"{servers[0].url}/metrics")).body.decode()

    samples = dict(line.split() for line in text.splitlines() if line.startswith("tuff_cluster_"))
    assert {name.removeprefix("tuff_cluster_"): float(each) for name, each in samples.items()} == {
        "members": 3, "suspended": 0, "reaches_hbase": 0, "reaches_directory": 0,
        "topics": 1, "draining": 0, "leading": 1, "leader_epoch": 1,
        "claims_total": 2, "releases_total": 1, "fences_total": 0,
        "requests_forwarded_total": 1, "requests_redirected_total": 1, "requests_refused_total": 1,
    }  # fmt: skip


async def test_a_page_has_ten_thousand_owners_at_most(
    servers: list[Server], session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "OWNERS_COUNT_MAX", 1)
    await servers[0].claim("a", "b")

    shown = await get(session, servers[0], "/v1/cluster/topics?limit=5")

    assert (len(shown["topics"]), shown["next"]) == (1, "shop:a")
