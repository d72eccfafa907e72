"""Values of replies and their JSON (`tuff.protocol.json_objects`)."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from tuff import replies
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId, PartitionId, TopicId
from tuff.protocol.json_objects import _fields, from_json, list_from_json, to_json
from tuff.protocol.transaction import InvalidReason, TransactionState, TransactionStatus
from tuff.protocol.values import Member, Pointer
from tuff.replies import (
    ClusterLeader,
    ClusterState,
    Drain,
    Explanation,
    Group,
    GroupMember,
    GroupPartition,
    Health,
    HealthCheck,
    HealthStatus,
    Hold,
    Invalids,
    MessageLostByGroup,
    Sink,
    TopicInfo,
)

ID = MessageId(1480000000000, 5)
STATUS = TransactionStatus(transaction_id=7, state="in_progress", client="me", started_at_ms=3)
HOLD = Hold(name="audit", first=ID, set_at_ms=1, expires_at_ms=2)
HOLD_FORM = {"name": "audit", "from": ID.hex(), "setAt": 1, "expiresAt": 2}
FIRST = TopicId("shop", "orders").partition(1)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (HOLD, HOLD_FORM),
        (Drain(server_id="a", is_draining=True, topics=3),
         {"server": "a", "isDraining": True, "topics": 3}),
        (Sink(sink="s", epoch=4, run_id="r", state=TransactionState.COMMITTED,
              transaction_id=1 << 60, updated_at_ms=9),
         {"sink": "s", "epoch": 4, "runId": "r", "state": "committed",
          "transactionId": str(1 << 60), "updatedAt": 9}),
        (TopicInfo(TopicId("shop", "orders"), 2, {"ttl": "5"}, (0, 1), (2,)),
         {"namespace": "shop", "name": "orders", "generation": 2, "properties": {"ttl": "5"},
          "partitions": [0, 1], "retired": [2]}),
        (ClusterState(cluster_id="c", server_id="a", incarnation=7, leader=None, servers=()),
         {"clusterId": "c", "server": {"id": "a", "incarnation": 7}, "leader": None,
          "servers": []}),
        (ClusterLeader(server_id="a", epoch=1, url="http://a"),
         {"id": "a", "epoch": 1, "url": "http://a"}),
        (Health(status=HealthStatus.OK, checks={"store": HealthCheck(HealthStatus.DOWN, "full")},
                version=None),
         {"status": "ok", "checks": {"store": {"status": "down", "detail": "full"}},
          "version": None}),
        (Invalids(invalids=(5,), reasons={InvalidReason.TIMED_OUT: (5,)}, prunable=(),
                  swept_at_ms=None, swept_with="ttl"),
         {"invalids": ["5"], "reasons": {"timed_out": ["5"]}, "prunable": [], "sweptAt": None,
          "sweptWith": "ttl"}),
        (Explanation(id="ab", topic=FIRST, generation=None, is_visible=False, reason="r",
                     detail="d", advice="a", blocked_by=7,
                     transaction=STATUS,
                     elsewhere=(TopicId("b", "orders"),),
                     lost_by=(MessageLostByGroup(kind="share", namespace="shop", group="g",
                                                 cause="expired", after=MessageId(1, 2)),)),
         {"id": "ab", "namespace": "shop", "topic": "orders:1", "generation": None,
          "visible": False, "reason": "r", "detail": "d", "advice": "a", "blockedBy": "7",
          "transaction": {"transactionId": "7", "state": "in_progress", "client": "me",
                          "startedAt": 3, "reason": None, "endedAt": None, "expiresAt": None,
                          "database": None},
          "elsewhere": [{"namespace": "b", "topic": "orders"}],
          "lostBy": [{"kind": "share", "namespace": "shop", "group": "g", "cause": "expired",
                      "after": MessageId(1, 2).hex()}]}),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_a_value_is_written_as_the_protocol_says_and_read_again(value: Any, form: Any) -> None:
    assert to_json(value) == form
    assert json.loads(json.dumps(to_json(value))) == form
    assert from_json(type(value), form) == value


def test_topics_have_only_their_names_in_a_reply_about_a_namespace() -> None:
    member = GroupMember(member_id="m", epoch=3, instance_id=None, client="c", topics=("orders",),
                         assigned=(FIRST,), target=())  # fmt: skip
    partition = GroupPartition(partition=FIRST, member_id="m", after=None, end=ID, behind_ms=4,
                               unread=1, is_lower_bound=False, unread_age_ms=5)  # fmt: skip
    group = Group(name="billing", state="stable", epoch=3, assignor="range", members=(member,),
                  partitions=(partition,))  # fmt: skip

    form = to_json(group, namespace="shop")

    assert form["members"][0]["memberEpoch"] == 3
    assert form["members"][0]["assigned"] == ["orders:1"]
    assert form["partitions"][0]["partition"] == "orders:1"
    assert (form["partitions"][0]["behindMs"], form["partitions"][0]["unreadAgeMs"]) == (4, 5)
    again = from_json(Group, form, namespace="shop")
    assert again == group
    assert type(again.partitions[0].partition) is PartitionId


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ([], "the reply is a JSON object, not []"),
        ({**HOLD_FORM, "name": 5}, "name is a string, not 5"),
        ({**HOLD_FORM, "from": 5}, "from is a string, not 5"),
        ({**HOLD_FORM, "from": "xyz"}, "'xyz' is not a message id: it takes 40 hex digits"),
        ({**HOLD_FORM, "setAt": "1"}, 'setAt is a whole number, not "1"'),
        ({**HOLD_FORM, "setAt": True}, "setAt is a whole number, not true"),
        ({**HOLD_FORM, "setAt": None}, "setAt is a whole number, not null"),
        ({"name": "audit"}, "the member from is missing"),
    ],
)
def test_a_bad_reply_is_one_sentence_that_names_the_member(form: object, sentence: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        from_json(Hold, form)

    assert caught.value.detail == sentence


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"server": "a", "isDraining": 1, "topics": 3}, "isDraining is true or false, not 1"),
        ({"server": "a", "isDraining": False, "topics": 1 << 70}, "topics is a whole number"),
    ],
)
def test_a_bad_member_of_another_kind_is_named(form: object, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        from_json(Drain, form)


def test_a_bad_element_is_named_with_its_list() -> None:
    form = to_json(ClusterState(cluster_id="c", server_id="a", incarnation=7, leader=None,
                                servers=()))  # fmt: skip

    with pytest.raises(BadRequestError, match="an element of servers is a JSON object, not 1"):
        from_json(ClusterState, {**form, "servers": [1]})
    with pytest.raises(BadRequestError, match="what has the member id is a JSON object, not 1"):
        from_json(ClusterState, {**form, "server": 1})
    with pytest.raises(BadRequestError, match="the reply is a JSON array, not null"):
        list_from_json(Hold, None)


def test_members_that_this_version_does_not_know_are_passed_over() -> None:
    assert from_json(Hold, {**HOLD_FORM, "ofTomorrow": 1}) == HOLD


def test_a_member_that_may_be_null_or_has_a_default_may_be_missing() -> None:
    found = from_json(Invalids, {"invalids": [], "prunable": []})

    assert found == Invalids(invalids=(), reasons={}, prunable=(), swept_at_ms=None,
                             swept_with=None)  # fmt: skip


def test_what_the_caller_knows_is_not_looked_for_in_the_reply() -> None:
    assert from_json(Hold, {"from": ID.hex(), "setAt": 1, "expiresAt": 2}, name="audit") == HOLD


@dataclass(frozen=True)
class AllForms:
    pointers: frozenset[Pointer]
    payload: bytes
    lease_s: float
    size_bytes: int
    deep: Annotated[str | None, Member("a.b.c")]
    messages_by_topic: dict[str, list[MessageId]]


def test_every_form_can_be_read_and_written() -> None:
    value = AllForms(frozenset({7}), b"\xff", 0.5, 9, "x", {"orders": [ID]})
    form = {"pointers": ["7"], "payload": {"base64": "/w=="}, "lease": 0.5, "sizeBytes": 9,
            "a": {"b": {"c": "x"}}, "messagesByTopic": {"orders": [ID.hex()]}}  # fmt: skip

    assert to_json(value) == form
    assert from_json(AllForms, form) == value
    assert from_json(AllForms, {**form, "payload": b"\xff"}) == value  # as of a session


OF_HTTP_FIELDS = {"Poll", "Published", "PublishedDelayed"}  # not of a JSON object


def test_no_two_fields_of_a_reply_have_one_member() -> None:
    kinds = [
        kind
        for kind in vars(replies).values()
        if dataclasses.is_dataclass(kind)
        and kind.__module__ == replies.__name__
        and kind.__name__ not in OF_HTTP_FIELDS
    ]

    assert len(kinds) > 25
    for kind in kinds:
        paths = [each.path for each in _fields(kind) if each.path]
        assert len(paths) == len(set(paths)), kind
