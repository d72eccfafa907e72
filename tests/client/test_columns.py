"""Reads in columns and in parts, from both clients (protocol §3.4, §3.7)."""

import pytest

import tuff
from tuff.calls import Response, poll_batch
from tuff.protocol.errors import HoldNotFoundError, InternalError, PositionNotFoundError

ALL = tuff.PollQuestion()


def test_a_batch_has_the_messages_of_a_poll(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, "one", b"\xff\x00")
    with client.transaction() as tx:
        tx.publish(topic, "three")

    told = client.poll(topic)
    found = client.poll_batch(topic, ALL)
    first = client.poll_batch(topic, tuff.PollQuestion(limit=2))

    ids = [tuff.MessageId.from_bytes(each) for each in found.batch["id"].to_pylist()]
    payloads = found.batch["value"].to_pylist()
    assert [tuff.Message(*each) for each in zip(ids, payloads, strict=True)] == list(told)
    assert found.batch["write_pointer"].null_count == 2
    assert (len(found), found.next_id, found.caught_up) == (3, told.next_id, True)
    assert (len(first), first.next_id, first.caught_up) == (2, ids[1], False)


def test_parts_are_read_side_by_side(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, *[str(number) for number in range(9)])

    parts = client.topics.splits(topic, 3)
    read = [
        client.poll(topic, part.start, inclusive=part.start is None, through=part.end)
        for part in parts
    ]

    assert (parts.generation, len(parts)) == (1, 3)
    assert [len(each) for each in read] == [3, 3, 3]
    assert [message for each in read for message in each] == list(client.poll(topic))
    behind = client.topics.splits(topic, 2, start=read[0][-1].id, end=parts[1].end)
    assert (behind[0].start, behind[-1].end) == (read[0][-1].id, parts[1].end)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/vnd.apache.arrow.stream"]
)
def test_a_reply_that_is_no_stream_is_told_as_such(content_type: str) -> None:
    headers = {"tuff-next": "0" * 40, "content-type": content_type}

    with pytest.raises(InternalError, match="in a form that no Tuff server uses"):
        poll_batch(tuff.TopicId("a", "b"), ALL).answer(Response(200, headers, b"[]"))


def test_holds_and_positions_live_their_lives(client: tuff.Client, topic: tuff.TopicId) -> None:
    published = client.publish(topic, "a", "b")

    hold = client.topics.hold(topic, "job", published.last_id, max_age=9.5)
    position = client.topics.set_position(topic, "job", published.first_id)

    assert (hold.first, hold.expires_at_ms - hold.set_at_ms) == (published.last_id, 9_500)
    assert client.topics.holds(topic) == [hold]
    assert (position.position, position.generation) == (published.first_id, 1)
    assert client.topics.position(topic, "job") == position
    assert client.topics.positions(topic) == [position]
    client.topics.release(topic, "job")
    client.topics.delete_position(topic, "job")
    with pytest.raises(HoldNotFoundError):
        client.topics.release(topic, "job")
    with pytest.raises(PositionNotFoundError):
        client.topics.position(topic, "job")


def test_a_message_that_is_none_is_refused_with_what_one_may_be(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    for wrong in (5, None, 1.5, [5], {"a": 1}.items()):
        with pytest.raises(TypeError, match="a message is str or bytes, not"):
            client.publish(topic, wrong)  # type: ignore[arg-type] # what a slip may pass
