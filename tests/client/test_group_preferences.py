"""The preferences of a consumer group from both clients."""

from datetime import timedelta

import pytest

import tuff
from tests.http.process import ServerProcess
from tuff import group_calls
from tuff.group_calls import GroupId


def test_preferences_are_set_changed_and_read(client: tuff.Client) -> None:
    retry = tuff.RetryPolicy(delays=(timedelta(minutes=1), 10), in_order=True)
    preferences = tuff.GroupPreferences(start="latest", tags="urgent|late", retry=retry)
    with pytest.raises(tuff.errors.GroupNotFoundError):
        client.groups.preferences("clients", "settled")

    was_set = client.groups.set_preferences("clients", "settled", preferences)
    assert was_set.retry == tuff.RetryPolicy(delays=(60.0, 10.0), in_order=True)
    assert (was_set.start, was_set.tags, was_set.isolation) == ("latest", "urgent|late", None)
    assert client.groups.preferences("clients", "settled") == was_set

    changed = client.groups.update_preferences("clients", "settled", tags=None, isolation="all")
    assert (changed.tags, changed.isolation, changed.start) == (None, "all", "latest")
    assert client.groups.list("clients") == ["settled"]


def test_a_member_gets_the_preferences_with_its_heartbeats(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    group = GroupId(namespace=topic.namespace, name="members")
    client.groups.set_preferences(group.namespace, group.name, tuff.GroupPreferences(tags="a"))

    join = group_calls.join(
        group, "m1", topics=[topic], start=None, assignor="sticky", instance_id=None, client="me"
    )
    joined = client._send(join)
    assert joined.preferences == tuff.GroupPreferences(tags="a")
    client.groups.update_preferences(group.namespace, group.name, dead_letters="failed")
    beat = group_calls.heartbeat(
        group,
        "m1",
        epoch=joined.epoch,
        group_epoch=joined.group_epoch,
        owned=joined.assigned,
        begun={},
    )
    assert client._send(beat).preferences == tuff.GroupPreferences(tags="a", dead_letters="failed")


@pytest.mark.parametrize(
    "changes", [{"start": "first"}, {"tags": ""}, {"retry": (1, 2)}, {"colour": "red"}]
)
def test_what_is_no_preference_is_refused_before_anything_is_sent(
    client: tuff.Client, changes: dict[str, object]
) -> None:
    with pytest.raises((TypeError, ValueError)):
        client.groups.update_preferences("clients", "refused", **changes)  # type: ignore[typeddict-item]  # what is tested
    assert "refused" not in client.groups.list("clients")


async def test_preferences_from_asyncio(server: ServerProcess) -> None:
    async with tuff.AsyncClient(server.url) as client:
        await client.groups.update_preferences("clients", "of-a-loop", start="latest")
        found = await client.groups.preferences("clients", "of-a-loop")

    assert found == tuff.GroupPreferences(start="latest")
