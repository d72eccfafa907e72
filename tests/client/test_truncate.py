"""Truncation of a topic through both clients (protocol §2, §3.8)."""

import pytest

import tuff


def test_what_lies_before_a_place_is_gone(
    tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "first")
    second = tuff_client.publish(tuff_topic, "second").first_id

    left = tuff_client.topics.truncate(tuff_topic, second)

    assert left == second
    assert [message.payload for message in tuff_client.poll(tuff_topic)] == [b"second"]


def test_nothing_is_left_of_a_topic_that_is_truncated_before_a_time_to_come(
    tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    published = tuff_client.publish(tuff_topic, "first").first_id

    assert tuff_client.topics.truncate(tuff_topic, published.publish_timestamp_ms + 60_000) is None


def test_what_somebody_holds_is_not_truncated(
    tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    first, second = (tuff_client.publish(tuff_topic, word).first_id for word in ("1", "2"))
    tuff_client.topics.hold(tuff_topic, "slow", first, max_age=60)

    with pytest.raises(tuff.TuffError) as refused:
        tuff_client.topics.truncate(tuff_topic, second)

    assert refused.value.code == "topic_held"
    assert len(tuff_client.poll(tuff_topic)) == 2
