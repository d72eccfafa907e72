"""Lag: checkpoints and named positions against the ends of topics. No Spark runs here."""

import json
from pathlib import Path

import pytest

import tuff
from pipeline.lag import (
    CheckpointError,
    Lag,
    lag_of,
    prometheus,
    readers_of_checkpoint,
    readers_of_topic,
    written_up_to,
)
from pyspark_tuff.checkpoint_offsets import Position, to_json
from tests.pipeline.conftest import Place


def write_checkpoint(home: Path, topic: tuff.TopicId, *ids: str, committed: int) -> Path:
    """As Spark writes it: the offsets of each batch, and which of them are written."""
    checkpoint = home / "query"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    for number, id in enumerate(ids):
        offset = json.dumps(to_json({topic: Position(generation=1, id=id)}))
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n-\n{offset}")
        (checkpoint / "offsets" / f".{number}.crc").write_bytes(b"")
    for number in range(committed):
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    return checkpoint


def lags_of(place: Place, checkpoint: Path) -> list[Lag]:
    return [lag_of(place.client, reader) for reader in readers_of_checkpoint(checkpoint)]


def test_the_lag_of_a_query_counts_messages_that_it_has_not_written(place: Place) -> None:
    ids = [place.client.publish(place.topic, "1").ids[0].hex() for _ in range(3)]
    place.clock.pass_hours()
    place.client.publish(place.topic, "late")
    checkpoint = write_checkpoint(place.home, place.topic, *ids, committed=2)

    (lag,) = lags_of(place, checkpoint)

    assert (lag.state, lag.count, lag.reader.name) == ("ok", 2, "query")
    assert 3_600_000 <= lag.behind_ms < 3_700_000


def test_a_named_position_at_the_end_is_not_behind(place: Place) -> None:
    place.client.publish(place.topic, "1", "2")
    end = place.client.poll(place.topic)[-1].id
    place.client.positions.set(place.topic, "report", end)

    (reader,) = readers_of_topic(place.client, place.topic)
    lag = lag_of(place.client, reader)

    assert (reader.name, lag.state, lag.count, lag.behind_ms) == ("report", "ok", 0, 0)


def test_a_reader_of_all_messages_loses_nothing_until_later_ones_expire(place: Place) -> None:
    topic = tuff.TopicId("tests", "brief")
    place.client.topics.create(topic, ttl=1)
    place.client.positions.set(topic, "report", place.client.publish(topic, "1").ids[-1])
    place.clock.pass_hours()

    (reader,) = readers_of_topic(place.client, topic)
    assert lag_of(place.client, reader).state == "ok"

    place.client.publish(topic, "2")
    place.clock.pass_hours()
    assert lag_of(place.client, reader).state == "maybe lost"


def test_a_deleted_or_recreated_topic_is_reported(place: Place) -> None:
    id = place.client.publish(place.topic, "1").ids[0].hex()
    checkpoint = write_checkpoint(place.home, place.topic, id, committed=1)
    place.client.topics.delete(place.topic)
    (deleted,) = lags_of(place, checkpoint)
    place.client.topics.create(place.topic)
    (again,) = lags_of(place, checkpoint)

    assert (deleted.state, again.state) == ("deleted", "created again")
    assert 'tuff_lag_broken{reader="query"' in prometheus([again])


def test_metrics_name_reader_and_topic(place: Place) -> None:
    place.client.publish(place.topic, "1")
    checkpoint = write_checkpoint(place.home, place.topic, "", committed=1)

    text = prometheus(lags_of(place, checkpoint))

    assert f'tuff_lag_messages{{reader="query",topic="{place.topic}"}} 1.0' in text


def test_a_query_that_has_written_nothing_has_no_positions(tmp_path: Path) -> None:
    topic = tuff.TopicId("shop", "orders")

    assert written_up_to(write_checkpoint(tmp_path, topic, "", committed=0)) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("v2\n{}\n", "version 'v2'"), ("v1\n{}\n-\n{}", "reads no topics"), ("", "can't be read")],
)
def test_a_directory_that_is_not_a_checkpoint_of_topics_is_refused(
    tmp_path: Path, text: str, reason: str
) -> None:
    checkpoint = write_checkpoint(tmp_path, tuff.TopicId("shop", "orders"), "", committed=1)
    (checkpoint / "offsets" / "0").write_text(text)

    with pytest.raises(CheckpointError, match=reason):
        written_up_to(checkpoint)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        written_up_to(tmp_path)
