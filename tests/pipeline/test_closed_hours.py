"""Hours, closed hours of a topic, and the default names of the sinks of jobs."""

import pytest

import tuff
from pipeline.archive import closed_hours
from pipeline.job import sink_of
from pipeline.manifest import Hour
from tests.pipeline.conftest import Place

ORDERS = tuff.TopicId("shop", "orders")


def test_an_hour_has_a_day_and_a_number_in_utc() -> None:
    hour = Hour.at(1_700_000_000_000)

    assert (hour.day, hour.of_day, str(hour)) == ("2023-11-14", "22", "2023-11-14T22")
    assert (hour.start_ms, hour.stop_ms) == (1_699_999_200_000, 1_700_002_800_000)


@pytest.mark.parametrize(("time_ms", "is_last"), [(86_399_999, True), (86_400_000, False)])
def test_a_day_ends_with_its_last_hour(time_ms: int, is_last: bool) -> None:
    assert Hour.at(time_ms).is_last_of_day is is_last


def test_a_later_decided_message_closes_earlier_hours(place: Place) -> None:
    place.clock.pass_hours()
    first = place.client.publish(place.topic, "1").first_id
    place.clock.pass_hours(3)
    second = place.client.publish(place.topic, "2").first_id
    before = list(closed_hours(place.client, place.topic, known=()))
    place.clock.pass_hours()
    place.client.publish(place.topic, "3")

    found = list(closed_hours(place.client, place.topic, known=()))

    hours = [Hour.at(id.publish_timestamp_ms) for id in (first, second)]
    assert [closed.hour for closed in before] == hours[:1]
    assert [closed.hour for closed in found] == hours
    assert [closed.after_ms for closed in found] == [0, hours[0].stop_ms]


def test_an_undecided_message_keeps_its_hour_and_later_ones_open(place: Place) -> None:
    place.client.publish(place.topic, "before")
    tx = place.client.transactions.start("long")
    place.client.publish(place.topic, "undecided", transaction=tx)
    place.clock.pass_hours()
    place.client.publish(place.topic, "later")
    place.clock.pass_hours()
    place.client.publish(place.topic, "last")
    before = list(closed_hours(place.client, place.topic, known=()))

    place.client.transactions.abort(tx)

    assert before == []
    assert len(list(closed_hours(place.client, place.topic, known=()))) == 2


def test_known_hours_are_skipped_and_their_ends_remembered(place: Place) -> None:
    place.publish_hours(["1"], ["2"])
    first, second = closed_hours(place.client, place.topic, known=())

    assert list(closed_hours(place.client, place.topic, known={first.hour})) == [second]


def test_an_empty_topic_has_no_hours(place: Place) -> None:
    assert list(closed_hours(place.client, place.topic, known=())) == []


def test_a_sink_has_the_names_of_its_job_and_its_topics() -> None:
    again = tuff.TopicId("shop", "again")

    assert sink_of("retry", ORDERS) == "retry/shop:orders"
    assert sink_of("replay", ORDERS, again) == "replay/shop:orders/shop:again"
    longest = tuff.TopicId("shop", "x" * (128 - len("audit/shop:")))
    assert sink_of("audit", longest) == f"audit/{longest}"


def test_names_too_long_for_a_sink_differ_by_a_hash(
    tuff_client: tuff.Client,
) -> None:
    """The server refused them, and a retry can't be given another."""
    targets = [tuff.TopicId("shop", "x" * 120 + end) for end in "ab"]

    names = [sink_of("replay", ORDERS, target) for target in targets]

    assert names == [sink_of("replay", ORDERS, target) for target in targets]
    assert len(set(names)) == 2
    for name in names:
        assert name.startswith("replay/shop:orders/shop:xxxx")
        epoch = tuff_client.sinks.begin(name, 1, "run")
        assert epoch.sink == name
        assert epoch.transaction is not None
        tuff_client.transactions.commit(epoch.transaction)
