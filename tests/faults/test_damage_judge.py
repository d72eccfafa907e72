"""The judge of `damage` finds every wrong salvage and every wrong read."""

import json

import pytest

from tests.admin.judge import MessageName, Seen
from tests.faults.damage_judge import (
    Reading,
    read_past_damage,
    wrong_in_loss,
    wrong_in_reading,
    wrong_in_salvage,
)
from tests.http.calls import Topic
from tests.http.client import Reply

A, B, C = (f"{number:040x}" for number in (1, 2, 3))
EXPECTED = [(A, "a"), (B, "b"), (C, "c")]


def seen(payloads: str, *, visible: str) -> Seen:
    return Seen(
        payloads={name(each): each.encode() for each in payloads},
        visible={name(each) for each in visible},
    )


def name(payload: str) -> MessageName:
    return ("one:t", 1, payload)


TRUTH = seen("abc", visible="ab")


@pytest.mark.parametrize(
    "salvaged", [TRUTH, seen("ac", visible="a"), seen("c", visible=""), seen("", visible="")]
)
def test_a_salvage_may_lose_messages(salvaged: Seen) -> None:
    assert wrong_in_salvage(TRUTH, salvaged) is None


@pytest.mark.parametrize(
    "salvaged",
    [
        seen("abc", visible=""),
        seen("abc", visible="a"),
        seen("ac", visible=""),
        seen("abc", visible="abc"),
        seen("abcd", visible="ab"),
    ],
)
def test_a_salvage_that_hides_reveals_or_invents_messages_is_found(salvaged: Seen) -> None:
    assert wrong_in_salvage(TRUTH, salvaged) is not None


def test_a_salvage_that_lost_more_than_the_damage_explains_is_found() -> None:
    less = seen("ac", visible="a")

    assert wrong_in_loss(TRUTH, less, lost_max=1, may_lose={name("b"), name("c")}) is None
    assert wrong_in_loss(TRUTH, less, lost_max=0, may_lose={name("b")}) is not None
    assert wrong_in_loss(TRUTH, less, lost_max=1, may_lose={name("c")}) is not None


class Answering:
    """A server that gives these replies one after the other, and records the start of each poll."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.starts: list[object] = []

    def post(self, _path: str, body: dict[str, object], **_query: object) -> Reply:
        self.starts.append(body["startFrom"])
        return self._replies.pop(0)


def topic(server: Answering) -> Topic:
    return Topic(server, "one", "t")  # type: ignore[arg-type]  # it is asked for polls only


def messages(*found: tuple[str, str], caught_up: bool) -> Reply:
    body = [{"id": message_id, "payload": payload} for message_id, payload in found]
    place = found[-1][0] if found else C
    headers = {"tuff-next": place, "tuff-caught-up": str(caught_up).lower()}
    return Reply("POST", 200, headers, json.dumps(body).encode())


def problem(status: int, code: str, **members: object) -> Reply:
    body = {"type": "about:blank", "title": "T", "status": status, "detail": "d", "code": code}
    headers = {"content-type": "application/problem+json"}
    return Reply("POST", status, headers, json.dumps({**body, **members}).encode())


def damaged(**members: object) -> Reply:
    return problem(500, "damaged_record", **members)


def test_a_reader_continues_after_a_damaged_range() -> None:
    server = Answering(
        messages((A, "a"), caught_up=False), damaged(id=B, next=B),
        messages((C, "c"), caught_up=True),
    )  # fmt: skip

    reading = read_past_damage(topic(server))

    assert server.starts == ["0" * 40, A, B]
    assert reading.gaps == [(B, B)]
    assert wrong_in_reading(EXPECTED, reading) is None


def test_a_topic_whose_own_row_is_damaged_can_not_be_read() -> None:
    reading = read_past_damage(topic(Answering(damaged(id=b"one:t:".hex(), next=None))))

    assert not reading.is_known
    assert wrong_in_reading(EXPECTED, reading) is None


@pytest.mark.parametrize(
    "reply",
    [
        problem(404, "topic_not_found"),
        problem(503, "storage_unavailable"),
        problem(500, "internal"),
        damaged(id=A, next="0" * 40),
        messages(("0" * 40, "a"), caught_up=False),
        damaged(id=b"one:other:".hex(), next=None),
    ],
)
def test_a_reply_without_messages_and_without_a_damaged_range_is_found(reply: Reply) -> None:
    with pytest.raises(AssertionError):
        read_past_damage(topic(Answering(reply)))


@pytest.mark.parametrize(
    "reading",
    [
        Reading(found=[]),
        Reading(found=[(A, "a"), (C, "c")]),
        Reading(found=[(A, "a"), (B, "b")]),
        Reading(found=[(A, "a"), (C, "c")], gaps=[(A, A)]),
        Reading(found=[(A, "a"), (B, "x"), (C, "c")]),
        Reading(found=[(B, "b"), (A, "a"), (C, "c")]),
        Reading(found=[*EXPECTED, (C, "c")]),
        Reading(found=[(A, "x")], is_known=False),
    ],
)
def test_a_wrong_read_is_found(reading: Reading) -> None:
    assert wrong_in_reading(EXPECTED, reading) is not None
