"""Starts and commits that one read of a session brings (decision 0049, §4): they share a write and
a sync, and each of them ends as it would by itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import Topic
from tests.http.client import Client, ok
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess
from tests.http.session_client import (
    COMMIT,
    INVALIDATE,
    OUTCOME,
    POLL,
    PUBLISH,
    START,
    SessionClient,
)
from tests.http.test_access import access_file, rights
from tests.http.test_audit_topic import Audited, of
from tests.protocol.avro_messages import messages_in
from tests.secret_values import token_of

Reply = list[Any]


@pytest.fixture
def session(server: ServerProcess) -> Iterator[SessionClient]:
    with SessionClient(server.port) as opened:
        yield opened


def together(session: SessionClient, *calls: Reply) -> list[Reply]:
    """The replies to calls that are sent at once."""
    session.write(*calls)
    return [session.reply_to(call[1]) for call in calls]


def started(session: SessionClient, count: int) -> list[str]:
    """The ids of new transactions, which start at once."""
    calls = [session.frame(START, body={"lists": False}) for _ in range(count)]
    replies = together(session, *calls)
    assert {each[0] for each in replies} == {201}
    return [each[2]["transactionId"] for each in replies]


def entry(topic: Topic, *messages: str) -> dict[str, object]:
    return {"namespace": topic.namespace, "topic": topic.name, "messages": messages}


def commit(session: SessionClient, transaction: object, **body: object) -> Reply:
    return session.frame(COMMIT, transaction, body=body)


def statuses(replies: list[Reply]) -> list[object]:
    """Of each its status, and of a refusal its code."""
    return [each[0] if each[0] < 400 else (each[0], each[2]["code"]) for each in replies]


def committed(session: SessionClient, topic: Topic) -> list[str]:
    names = topic.namespace, topic.name
    body = session.call(POLL, *names, query={"isolation": "committed"}, body={})[2]
    return [payload.decode() for _, payload in messages_in(body)]


def test_each_gets_a_transaction_of_its_own(session: SessionClient) -> None:
    ids = started(session, 40)

    assert len(set(ids)) == 40
    assert ids == sorted(ids, key=int)
    states = together(session, *[session.frame(OUTCOME, each) for each in ids])
    assert {each[2]["state"] for each in states} == {"in_progress"}


def test_each_commit_publishes_its_own_messages(session: SessionClient, topic: Topic) -> None:
    ids = started(session, 30)
    sent = [[f"{n}.{part}" for part in range(1 + n % 3)] for n in range(30)]
    calls = [
        commit(session, each, changes=[f"own {each}"], publish=[entry(topic, *messages)])
        for each, messages in zip(ids, sent, strict=True)
    ]

    replies = together(session, *calls)

    assert {(each[0], each[2]["state"]) for each in replies} == {(200, "committed")}
    assert committed(session, topic) == [message for messages in sent for message in messages]
    pointers = [
        detail["transactionWritePointer"] for each in replies for detail in each[2]["published"]
    ]
    assert pointers == ids
    # Repeated together, each gets its first reply, and nothing is published again.
    assert [each[2] for each in together(session, *calls)] == [each[2] for each in replies]
    assert len(committed(session, topic)) == sum(map(len, sent))


@pytest.mark.parametrize("publishes", [True, False])
def test_of_equal_changes_one_commits(
    session: SessionClient, topic: Topic, *, publishes: bool
) -> None:
    ids = started(session, 12)
    calls = []
    for number, each in enumerate(ids):
        publish = [entry(topic, each)] if publishes else []
        changes = [f"{topic.name} {number % 4}", f"own {each}"]
        calls.append(commit(session, each, changes=changes, publish=publish))

    replies = together(session, *calls)

    assert statuses(replies) == [200] * 4 + [(409, "transaction_conflict")] * 8
    assert [each[2]["conflictingTransaction"] for each in replies[4:]] == ids[:4] * 2
    assert committed(session, topic) == (ids[:4] if publishes else [])


def test_a_commit_that_is_refused_fails_by_itself(
    session: SessionClient, topic: Topic, client: Client
) -> None:
    ids = started(session, 9)
    ended, named = ids[6], ids[7]
    assert session.call(INVALIDATE, ended, body={})[0] == 200
    here, nowhere = [entry(topic, "m")], [{"namespace": "x", "topic": "none", "messages": ["m"]}]
    calls = [
        commit(session, ids[0], changes=["a"], publish=here),
        commit(session, ids[1], changes=["b"], publish=nowhere),
        commit(session, ids[2], changes="c", publish=here),
        commit(session, ids[3], publish=here, other=1),
        commit(session, ids[4], changes=["e" * 100_000], publish=here),
        commit(session, "7", publish=here),
        commit(session, ended, publish=here),
        commit(session, named, publish=here, then={"start": {"timeout": 0}}),
        commit(session, ids[0], changes=["a"], publish=here),
        commit(session, ids[5], readOnly=True),
        commit(session, ids[8], changes=["i"], publish=here),
    ]

    replies = together(session, *calls)

    assert statuses(replies) == [
        200,
        (404, "topic_not_found"),
        (400, "bad_request"),
        (400, "bad_request"),
        200,
        (404, "transaction_unknown"),
        (409, "transaction_invalidated"),
        (400, "invalid_timeout"),
        200,
        200,
        200,
    ]
    assert replies[8][2] == replies[0][2]
    assert committed(session, topic) == ["m"] * 3
    open_ones = [session.call(OUTCOME, ids[index])[2]["state"] for index in (1, 2, 3, 7)]
    assert open_ones == ["in_progress"] * 4
    assert b"tuff_requests_under_way 0.0\n" in client.get("/metrics").body


def test_commits_start_the_next_transactions(session: SessionClient, topic: Topic) -> None:
    ids = started(session, 10)
    then = {"start": {"lists": False}}
    calls = [commit(session, each, publish=[entry(topic, each)], then=then) for each in ids]

    following = [each[2]["next"]["transactionId"] for each in together(session, *calls)]

    assert len(set(following)) == 10
    last = [commit(session, each, publish=[entry(topic, each)]) for each in following]
    assert {each[0] for each in together(session, *last)} == {200}
    assert committed(session, topic) == [*ids, *following]


def test_publishes_before_a_commit_belong_to_it(session: SessionClient, topic: Topic) -> None:
    """A commit waits for the writes of its transaction that the same read has brought."""
    ids, names = started(session, 6), (topic.namespace, topic.name)
    calls = []
    for each in ids:
        body = {"messages": [f"{each} before"], "transactionWritePointer": each}
        calls.append(session.frame(PUBLISH, *names, body=body))
    calls += [commit(session, each, publish=[entry(topic, f"{each} with")]) for each in ids]

    assert {each[0] for each in together(session, *calls)} == {200}
    assert committed(session, topic) == [
        *(f"{each} before" for each in ids),
        *(f"{each} with" for each in ids),
    ]


def test_the_limits_on_transactions_count_each(new_server: NewServer, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    alice = rights("alice", "transact").replace("[[", "open_transactions = 3\n[[", 1)
    file.write_text(access_file({"alice": alice}))
    server = new_server(f"server.access_file={file}")
    headers = {"Authorization": f"Bearer {token_of('alice')}"}
    with SessionClient(server.port, headers=headers) as session:
        replies = together(session, *[session.frame(START, body={}) for _ in range(8)])

    assert statuses(replies) == [201] * 3 + [(429, "quota_exceeded")] * 5


def test_each_needs_its_rights_and_its_owner(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    ok(audited.send("admin", "PUT", "/v1/namespaces/shop/topics/t"))
    bob = ok(audited.send("bob", "POST", "/v1/transactions")).json["transactionId"]
    headers = {"Authorization": f"Bearer {token_of('alice')}"}
    with SessionClient(audited.server.port, headers=headers) as session:
        ids = started(session, 3)
        # Without messages, so that the rights on topics are not asked for.
        calls = [commit(session, each, changes=[each]) for each in (ids[0], bob, *ids[1:])]

        assert statuses(together(session, *calls)) == [200, (403, "forbidden"), 200, 200]

    act = audited.await_act(of("POST /v1/transactions/{tx}/commit", "forbidden"))
    assert (act["principal"], act["parameters"]) == ("alice", {"tx": bob})
    headers = {"Authorization": f"Bearer {token_of('bob')}"}
    with SessionClient(audited.server.port, headers=headers) as session:
        calls = []
        for each in started(session, 2):
            publish = [{"namespace": "shop", "topic": "t", "messages": ["m"]}]
            calls.append(commit(session, each, publish=publish))
        assert statuses(together(session, *calls)) == [(403, "forbidden")] * 2
    audited.server.end()


def test_who_may_administer_ends_those_of_others_on_record(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    alice = [ok(audited.send("alice", "POST", "/v1/transactions")).json["transactionId"]]
    headers = {"Authorization": f"Bearer {token_of('admin')}"}
    with SessionClient(audited.server.port, headers=headers) as session:
        calls = [commit(session, each, changes=[each]) for each in (*started(session, 2), *alice)]

        assert statuses(together(session, *calls)) == [200] * 3

    act = audited.await_act(of("POST /v1/transactions/{tx}/commit", "ok"))
    assert act["transactions"] == alice
    audited.server.end()


def test_each_counts_in_the_figures(server: ServerProcess, client: Client) -> None:
    def count(operation: str) -> float:
        name = f'tuff_request_seconds_count{{operation="{operation}",'
        lines = client.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    begun = "POST /v1/transactions"
    before = count(begun), count(f"{begun}/{{tx}}/commit")
    with SessionClient(server.port) as session:
        calls = [commit(session, each, changes=[each]) for each in started(session, 25)]
        together(session, *calls)

    assert (count(begun) - before[0], count(f"{begun}/{{tx}}/commit") - before[1]) == (25, 25)


def test_they_stop_with_the_service(new_server: NewServer) -> None:
    server = new_server()
    with SessionClient(server.port) as session:
        ids = started(session, 4)
        ok(server.client().post("/v1/transactions/service/stop"))

        begins = together(session, *[session.frame(START, body={}) for _ in range(3)])
        ends = together(session, *[commit(session, each, changes=[each]) for each in ids])

        assert set(statuses(begins + ends)) == {(503, "transactions_unavailable")}
        ok(server.client().post("/v1/transactions/service/start"))
        ends = together(session, *[commit(session, each, changes=[each]) for each in ids])
        assert statuses(ends) == [200] * 4
