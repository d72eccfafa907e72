"""The default names of the sinks of pipeline jobs."""

import tuff
from pipeline.completed_hours import sink_of

ORDERS = tuff.TopicId("shop", "orders")


def test_a_sink_has_the_names_of_its_job_and_its_topics() -> None:
    again = tuff.TopicId("shop", "again")

    assert sink_of("retry", ORDERS) == "retry/shop:orders"
    assert sink_of("replay", ORDERS, again) == "replay/shop:orders/shop:again"
    longest = tuff.TopicId("shop", "x" * (128 - len("audit/shop:")))
    assert sink_of("audit", longest) == f"audit/{longest}"


def test_names_too_long_for_a_sink_are_told_apart_by_a_hash(
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
