"""Consumer groups of a running server (protocol §3.11)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.calls import Topic, begin, created, ids, metrics_of
from tests.http.client import Client, Reply, ok, refused, until
from tests.http.conftest import NewServer

PLACE = "0000015896dfd00000050000000000000000ffff"


UNSET = {"start": None, "isolation": None, "tags": None, "retry": None, "deadLetters": None}


class Group:
    """One group of the namespace of a topic."""

    def __init__(self, client: Client, namespace: str, name: str = "billing") -> None:
        self.client = client
        self.path = f"/v1/namespaces/{namespace}/groups/{name}"

    def join(self, member_id: str, *topics: str, **more: object) -> Any:
        return ok(self.try_join(member_id, *topics, **more)).json

    def try_join(self, member_id: str, *topics: str, **more: object) -> Reply:
        body = {"memberId": member_id, "memberEpoch": 0, "topics": list(topics), **more}
        return self.client.post(f"{self.path}/heartbeat", body)

    def beat(self, view: Any, *owned: str) -> Reply:
        """A heartbeat of the member that got this reply."""
        body = {
            "memberId": view["memberId"],
            "memberEpoch": view["memberEpoch"],
            "groupEpoch": view["groupEpoch"],
            "owned": list(owned),
        }
        return self.client.post(f"{self.path}/heartbeat", body)

    def leave(self, member_id: str, epoch: int = -1) -> Reply:
        body = {"memberId": member_id, "memberEpoch": epoch}
        return self.client.post(f"{self.path}/heartbeat", body)

    def commit(self, view: Any, offsets: dict[str, str], tx: object = None) -> Reply:
        body: dict[str, object] = {
            "memberId": view["memberId"],
            "memberEpoch": view["memberEpoch"],
            "offsets": offsets,
        }
        if tx is not None:
            body["transactionWritePointer"] = tx
        return self.client.post(f"{self.path}/offsets", body)

    def committed(self) -> Any:
        return ok(self.client.get(f"{self.path}/offsets")).json

    def after(self, partition: str) -> str | None:
        found = {each["partition"]: each["after"] for each in self.committed()["offsets"]}
        return found.get(partition)

    def reset(self, offsets: dict[str, str | None]) -> Reply:
        return self.client.post(f"{self.path}/offsets/reset", {"offsets": offsets})

    def show(self) -> Any:
        return ok(self.client.get(self.path)).json


@pytest.fixture
def group(client: Client, topic: Topic) -> Group:
    return Group(client, topic.namespace)


def test_a_member_joins_commits_and_leaves(client: Client, topic: Topic, group: Group) -> None:
    for letter in "abc":
        ok(topic.publish(letter))
    first, second, third = ids(topic.poll())

    view = group.join("m1", topic.name, client="worker 1")
    assert view == {
        "memberId": "m1",
        "memberEpoch": 1,
        "groupEpoch": 1,
        "assigned": [f"{topic.name}:0"],
        "lost": [],
        "heartbeatInterval": 5.0,
        "sessionTimeout": 45.0,
        "preferences": UNSET,
    }
    assert ok(group.beat(view, f"{topic.name}:0")).json == view
    ok(group.commit(view, {f"{topic.name}:0": first}))
    ok(group.commit(view, {f"{topic.name}:0": second.upper()}))

    shown = group.show()
    assert shown["members"] == [
        {
            "memberId": "m1",
            "memberEpoch": 1,
            "instanceId": None,
            "client": "worker 1",
            "topics": [topic.name],
            "assigned": [f"{topic.name}:0"],
            "target": [f"{topic.name}:0"],
        }
    ]
    (partition,) = shown["partitions"]
    assert (partition["after"], partition["end"]) == (second, third)
    assert partition["behindMs"] == int(third[:16], 16) - int(second[:16], 16)
    assert (shown["state"], shown["epoch"], shown["assignor"]) == ("stable", 1, "sticky")
    assert ok(client.get(group.path.rpartition("/")[0])).json == ["billing"]

    ok(group.leave("m1"))
    assert group.show()["state"] == "empty"
    assert group.after(f"{topic.name}:0") == second


def test_the_log_of_a_group_is_no_topic(client: Client, topic: Topic, group: Group) -> None:
    group.join("m1", topic.name)

    topics = f"/v1/namespaces/{topic.namespace}/topics"
    assert ok(client.get(topics)).json == [topic.name]
    refused(client.get(f"{topics}/billing:group"), 400, "invalid_name")
    refused(client.delete(f"{topics}/billing:group"), 400, "invalid_name")


def test_a_partition_goes_to_the_next_member_once_the_first_left(
    topic: Topic, group: Group
) -> None:
    group.join("m1", topic.name)
    second = group.join("m2", topic.name)
    assert second["assigned"] == []

    ok(group.leave("m1"))

    assert ok(group.beat(second)).json["assigned"] == [f"{topic.name}:0"]


def test_a_topic_that_is_created_later_is_assigned(
    client: Client, topic: Topic, group: Group
) -> None:
    later = Topic(client, topic.namespace, "later")
    view = group.join("m1", "later")
    assert view["assigned"] == []

    ok(later.create())

    assert ok(group.beat(view)).json["assigned"] == ["later:0"]


def test_a_static_member_keeps_its_assignment_while_it_restarts(topic: Topic, group: Group) -> None:
    group.join("m1", topic.name, instanceId="worker-1")
    refused(group.try_join("m2", topic.name, instanceId="worker-1"), 409, "unreleased_instance_id")
    other = group.join("m3", topic.name)

    ok(group.leave("m1", -2))
    assert ok(group.beat(other)).json["assigned"] == []

    assert group.join("m2", topic.name, instanceId="worker-1")["assigned"] == [f"{topic.name}:0"]


def test_requests_that_a_member_may_not_make_are_refused(topic: Topic, group: Group) -> None:
    refused(group.leave("m1"), 404, "group_not_found", naming="billing")
    view = group.join("m1", topic.name)
    unknown = {**view, "memberId": "m2"}
    refused(group.beat(unknown), 409, "unknown_member", naming="m2")
    refused(group.commit(unknown, {f"{topic.name}:0": PLACE}), 409, "unknown_member")
    refused(group.beat({**view, "memberEpoch": 9}), 409, "fenced_member_epoch")
    problem = refused(
        group.commit({**view, "memberEpoch": 9}, {f"{topic.name}:0": PLACE}),
        409,
        "stale_member_epoch",
    )
    assert problem["memberEpoch"] == 1
    problem = refused(group.commit(view, {"other:0": PLACE}), 409, "partition_not_assigned")
    assert problem["partitions"] == ["other:0"]


def test_an_offset_in_a_transaction_counts_if_the_transaction_commits(
    client: Client, topic: Topic, group: Group
) -> None:
    ok(topic.publish("a", "b"))
    first, second = ids(topic.poll())
    view = group.join("m1", topic.name)
    committed, aborted = begin(client), begin(client)

    ok(group.commit(view, {f"{topic.name}:0": first}, tx=committed.id))
    assert group.committed() == {"offsets": [], "undecided": [f"{topic.name}:0"]}
    ok(committed.commit())
    assert group.after(f"{topic.name}:0") == first

    ok(group.commit(view, {f"{topic.name}:0": second}, tx=aborted.id))
    ok(aborted.abort())
    assert group.committed()["undecided"] == []
    assert group.after(f"{topic.name}:0") == first
    refused(
        group.commit(view, {f"{topic.name}:0": second}, tx=aborted.id), 409, "transaction_aborted"
    )


def test_a_member_reports_what_it_begins_without_a_commit(topic: Topic, group: Group) -> None:
    view = group.join("m1", topic.name)
    ok(group.beat(view, f"{topic.name}:0"))
    report = {"memberId": "m1", "memberEpoch": 1, "begun": {f"{topic.name}:0": PLACE}}

    ok(group.client.post(f"{group.path}/offsets", report))

    assert group.committed() == {"offsets": [], "undecided": []}
    stale = group.client.post(f"{group.path}/offsets", {**report, "memberEpoch": 2})
    refused(stale, 409, "stale_member_epoch")


def test_offsets_are_reset_while_no_member_has_the_partition(topic: Topic, group: Group) -> None:
    view = group.join("m1", topic.name)
    ok(group.commit(view, {f"{topic.name}:0": PLACE}))
    refused(group.reset({f"{topic.name}:0": None}), 409, "group_not_empty", naming=topic.name)
    refused(group.client.delete(group.path), 409, "group_not_empty")
    ok(group.leave("m1"))

    ok(group.reset({f"{topic.name}:0": "00" * 20, "other:0": PLACE}))
    assert (group.after(f"{topic.name}:0"), group.after("other:0")) == ("00" * 20, PLACE)
    ok(group.reset({"other:0": None}))
    assert group.after("other:0") is None

    ok(group.client.delete(group.path))
    refused(group.client.get(group.path), 404, "group_not_found")
    group.join("m1", topic.name)
    assert group.committed() == {"offsets": [], "undecided": []}


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("heartbeat", {}),
        ("heartbeat", {"memberId": "m"}),
        ("heartbeat", {"memberId": "m", "memberEpoch": "0", "topics": ["t"]}),
        ("heartbeat", {"memberId": "m", "memberEpoch": True, "topics": ["t"]}),
        ("heartbeat", {"memberId": "m", "memberEpoch": -3}),
        ("heartbeat", {"memberId": "m", "memberEpoch": -1, "topics": ["t"]}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": []}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": "t"}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": [1]}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": ["t"], "owned": []}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": ["t"], "assignor": "best"}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": ["t"], "client": "x" * 201}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 0, "topics": ["t"], "client": "\ud800"}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 1, "groupEpoch": 1}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 1, "owned": []}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 1, "groupEpoch": -1, "owned": []}),
        ("heartbeat", {"memberId": "m", "memberEpoch": 1, "owned": [], "topics": ["t"]}),
        ("offsets", {"memberId": "m", "memberEpoch": 1}),
        ("offsets", {"memberId": "m", "memberEpoch": 1, "offsets": {}}),
        ("offsets", {"memberId": "m", "memberEpoch": 1, "begun": {}}),
        ("offsets", {"memberId": "m", "memberEpoch": 0, "offsets": {"t:0": PLACE}}),
        ("offsets", {"memberId": "m", "memberEpoch": 1, "offsets": {"t:0": 5}}),
        ("offsets", {"memberId": "m", "memberEpoch": 1, "offsets": [PLACE]}),
        ("offsets/reset", {}),
        ("offsets/reset", {"offsets": {"t:0": 5}}),
        ("offsets/reset", {"offsets": {}, "memberId": "m"}),
    ],
)
def test_a_malformed_request_is_refused(group: Group, call: str, body: object) -> None:
    refused(group.client.post(f"{group.path}/{call}", body), 400, "bad_request")


@pytest.mark.parametrize(
    "body",
    [
        {"memberId": "m m", "memberEpoch": 0, "topics": ["t"]},
        {"memberId": "m", "memberEpoch": 0, "topics": ["t:1"]},
        {"memberId": "m", "memberEpoch": 0, "topics": ["t"], "instanceId": ""},
    ],
)
def test_a_name_that_is_not_legal_is_refused(group: Group, body: object) -> None:
    refused(group.client.post(f"{group.path}/heartbeat", body), 400, "invalid_name")
    wrong = f"{group.path}:group/heartbeat"
    refused(group.client.post(wrong, {"memberId": "m", "memberEpoch": -1}), 400, "invalid_name")


@pytest.mark.parametrize(
    "name", ["{}", "{}:01", "{}:x", "{}:0:delayed", "billing:group", "a b", "\ud800"]
)
def test_a_partition_has_one_name(topic: Topic, group: Group, name: str) -> None:
    view = group.join("m1", topic.name)
    wrong = name.format(topic.name)

    refused(group.beat(view, wrong), 400, "invalid_name")
    refused(group.commit(view, {wrong: PLACE}), 400, "invalid_name")
    refused(group.reset({wrong: PLACE}), 400, "invalid_name")
    ok(group.client.get(group.path))


def test_preferences_are_kept_on_the_server_and_members_get_them(
    client: Client, topic: Topic, group: Group
) -> None:
    path = f"{group.path}/preferences"
    refused(client.get(path), 404, "group_not_found")
    retry = {"delays": [10, 60.5], "inOrder": True}

    put = ok(client.put(path, {"tags": "urgent", "retry": retry, "isolation": "all"})).json
    assert put == {**UNSET, "tags": "urgent", "retry": retry, "isolation": "all"}
    patched = ok(client.call("PATCH", path, {"tags": None, "deadLetters": "failed"})).json
    assert patched == {**put, "tags": None, "deadLetters": "failed"}
    assert ok(client.get(path)).json == patched

    view = group.join("m1", topic.name)
    assert view["preferences"] == patched
    assert ok(client.put(path, {})).json == UNSET
    assert ok(group.beat(view, f"{topic.name}:0")).json["preferences"] == UNSET


def test_a_group_begins_as_its_preferences_say(client: Client, topic: Topic, group: Group) -> None:
    ok(topic.publish("a"))
    (newest,) = ids(topic.poll())
    ok(client.put(f"{group.path}/preferences", {"start": "latest"}))

    group.join("m1", topic.name)

    assert group.after(f"{topic.name}:0") == newest


@pytest.mark.parametrize(
    "body", [[], {"start": "first"}, {"tags": ""}, {"retry": {"delays": "1"}}, {"colour": "red"}]
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_malformed_preferences_are_refused_and_create_no_group(
    client: Client, group: Group, method: str, body: object
) -> None:
    path = f"{group.path}/preferences"
    refused(client.call(method, path, body), 400, "bad_request")
    refused(client.get(path), 404, "group_not_found")


@pytest.fixture
def own_client(new_server: NewServer) -> Iterator[Client]:
    """Of a server with short sessions."""
    server = new_server("groups.session_timeout=2", "groups.heartbeat_interval=0.1")
    client = server.client()
    yield client
    client.close()


def test_a_member_that_is_not_heard_of_is_fenced(own_client: Client) -> None:
    ok(Topic(own_client, "shop", "orders").create())
    group = Group(own_client, "shop")
    group.join("m1", "orders")
    view = group.join("m2", "orders")
    assert view["heartbeatInterval"] == 0.1

    assigned = until(lambda: ok(group.beat(view)).json["assigned"], what="the partition to be free")

    assert assigned == ["orders:0"]
    assert [each["memberId"] for each in group.show()["members"]] == ["m2"]


def test_metrics_show_members_and_lag_of_a_group(client: Client, topic: Topic) -> None:
    group = Group(client, topic.namespace, "lagging")
    ok(topic.publish("a"))
    (first,) = ids(topic.poll())
    view = group.join("m1", topic.name)
    ok(group.commit(view, {f"{topic.name}:0": first}))
    labels = f'{{group="lagging",namespace="{topic.namespace}"'

    behind = f'tuff_group_behind_seconds{labels},partition="{topic.name}:0"}}'

    # A scrape shows no lag that takes long to read, and the next one what was read then.
    until(lambda: metrics_of(client).get(behind) == 0)
    ok(topic.publish("b"))
    second = ids(topic.poll())[1]

    ms = int(second[:16], 16) - int(first[:16], 16)
    until(lambda: metrics_of(client).get(behind) == ms / 1000)
    assert metrics_of(client)[f"tuff_group_members{labels}}}"] == 1


def test_a_group_reads_topics_of_other_namespaces(client: Client, topic: Topic) -> None:
    other = created(client, f"{topic.namespace}-2", "orders")
    group = Group(client, topic.namespace)
    foreign, own = f"{other.namespace}:orders", f"{topic.namespace}:{topic.name}"
    partitions = [f"{topic.name}:0", f"{foreign}:0"]

    view = group.join("m1", foreign, own)  # its own namespace need not be named

    assert sorted(view["assigned"]) == sorted(partitions)
    view = ok(group.beat(view, *partitions)).json
    (id,) = ids(ok(other.publish("a")) and other.poll())
    ok(group.commit(view, {f"{foreign}:0": id}))
    assert group.after(f"{foreign}:0") == id
    found = ok(client.get(group.path)).json
    assert found["members"][0]["topics"] == [foreign, topic.name]
    lags = {each["partition"]: (each["after"], each["end"]) for each in found["partitions"]}
    assert lags == {f"{topic.name}:0": (None, None), f"{foreign}:0": (id, id)}
    group.leave("m1")
    ok(client.post(f"{group.path}/offsets/reset", {"offsets": {f"{foreign}:0": None}}))
    assert group.after(f"{foreign}:0") is None


def test_a_wait_names_topics_of_other_namespaces(client: Client, topic: Topic) -> None:
    other = created(client, f"{topic.namespace}-3", "orders")
    ok(other.publish("a"))
    name, after = f"{other.namespace}:orders", {"after": {"0": "0" * 40}}

    found = client.post(
        f"/v1/namespaces/{topic.namespace}/wait", {"topics": {topic.name: after, name: after}}
    )

    assert ok(found).json == {"partitions": [f"{name}:0"]}


@pytest.mark.parametrize("wrong", ["other:3", "other:", ":orders", "other:orders:0", "a:b:c:0"])
def test_a_group_subscribes_to_topics_and_not_to_partitions(
    client: Client, topic: Topic, wrong: str
) -> None:
    group = Group(client, topic.namespace)

    refused(group.try_join("m1", wrong), 400, "invalid_name")


def test_a_topic_with_the_name_of_another_namespace_is_not_read_with_its_topics(
    client: Client, topic: Topic
) -> None:
    other = created(client, f"{topic.namespace}-4", "orders")
    namesake = created(client, topic.namespace, other.namespace)
    group = Group(client, topic.namespace, "of-others")
    group.join("m1", f"{other.namespace}:orders")

    assert ok(client.get(f"{namesake.path}/overview")).json["groups"] == []
