"""Which hours of a topic are closed."""

from kernel.archive_manifest import Hour
from pipeline.archive import closed_hours
from tests.pipeline.conftest import Place


def test_a_later_decided_message_closes_earlier_hours(place: Place) -> None:
    place.clock.pass_hours()
    first = place.client.publish(place.topic, "1").ids[0]
    place.clock.pass_hours(3)
    second = place.client.publish(place.topic, "2").ids[0]
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
