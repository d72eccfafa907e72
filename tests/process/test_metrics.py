"""A scrape shows histograms, gauges, and figures of topics and positions."""

import asyncio
from collections.abc import Iterable

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as text_string_to_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from messaging.groups.consumer_coordinator import GroupLags
from messaging.groups.share_coordinator import ShareGroupView
from messaging.groups.share_decisions import ShareProperties
from messaging.read.counts import MessageCount
from messaging.read.lags import Lag
from messaging.read.lost_messages import GroupKind, GroupName, LossCause, LossKey
from messaging.retention.holds_and_positions import PositionLag
from process import scraped_metrics
from process.metrics import Metric, Metrics, counter, gauge
from process.scraped_metrics import LagReader, Lags, of_lags, of_topics
from tests.messaging.world import AUDIT, World, publish
from tuff.protocol.errors import StorageUnavailableError
from tuff.protocol.ids import FIRST_ID, TopicId

TOPIC = TopicId("default", "t")


def _samples(metrics: Metrics, read: Iterable[Metric] = ()) -> dict[str, float]:
    text, _ = metrics.text(read)
    families = text_string_to_metric_families(text.decode())
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_bucket_counts_what_is_at_most_its_bound() -> None:
    metrics = Metrics()
    for value in (1, 2, 2, 3, 100_000):
        metrics.observe("store_batch_requests", value)

    shown = _samples(metrics)

    name = "tuff_store_batch_requests"
    counts = [shown[f"{name}_bucket {bound}"] for bound in ("1.0", "2.0", "4.0", "+Inf")]
    assert counts == [1, 3, 4, 5]
    assert (shown[f"{name}_count"], shown[f"{name}_sum"]) == (5, 100_008)


def test_requests_are_counted_by_operation_and_class_of_status() -> None:
    metrics = Metrics()
    metrics.observe_request("GET /a", 200, 0.5)
    metrics.observe_request("GET /a", 204, 0.5)
    metrics.observe_request("GET /a", 503, 0.5)

    shown = _samples(metrics)

    counts = [shown[f"tuff_request_seconds_count GET /a {kind}"] for kind in ("2xx", "5xx")]
    assert counts == [2, 1]


def _lags() -> Lags:
    unread = MessageCount(5, is_lower_bound=True, oldest_ms=6_000)
    position = PositionLag(
        topic=TOPIC,
        name="report",
        updated_at_ms=9_000,
        lag=Lag(end=None, behind_ms=2_000, unread=MessageCount()),
    )
    group = GroupLags(
        group=GroupName(GroupKind.CONSUMER, "default", "g"),
        members_count=3,
        lags={"t:1": Lag(end=None, behind_ms=500, unread=unread)},
    )
    share_group = ShareGroupView(
        name="s",
        properties=ShareProperties(start="earliest", after=FIRST_ID),
        counts={},
        low=FIRST_ID,
        oldest=None,
        end=None,
        behind_ms=700,
    )
    consumers = GroupName(GroupKind.CONSUMER, "default", "g")
    workers = GroupName(GroupKind.SHARE, "other", "s")
    lost = {
        LossKey(consumers, TOPIC, LossCause.EXPIRED): 4,
        LossKey(workers, TOPIC, LossCause.TRUNCATED): 6,
    }
    return Lags(
        [position], [group], [(TOPIC, share_group)], [(TOPIC, unread)], now_ms=10_000, lost=lost
    )


def test_a_scrape_shows_topics_readers_and_losses() -> None:
    read = [gauge("open", "Open.", 2), counter("done", "D.", 3)]

    shown = _samples(Metrics(), [*read, *of_topics([(TOPIC, 2, 7)]), *of_lags(_lags())])

    assert (shown["tuff_open"], shown["tuff_done_total"]) == (2, 3)
    assert shown["tuff_topic_messages_total default t"] == 2
    assert shown["tuff_topic_bytes_total default t"] == 7
    assert shown["tuff_position_behind_seconds default report t"] == 2
    assert shown["tuff_position_updated_timestamp_seconds default report t"] == 9
    assert shown["tuff_group_members g default"] == 3
    assert shown["tuff_group_behind_seconds g default t:1"] == 0.5
    assert shown["tuff_share_group_behind_seconds s default t"] == 0.7
    assert shown["tuff_group_unread_messages g default t:1"] == 5
    assert shown["tuff_group_oldest_unread_seconds g default t:1"] == 4
    assert shown["tuff_position_unread_messages default report t"] == 0
    assert shown["tuff_position_oldest_unread_seconds default report t"] == 0
    assert shown["tuff_topic_stored_messages default t"] == 5
    assert shown["tuff_group_lost_messages_total expired g default t"] == 4
    assert shown["tuff_share_group_lost_messages_total truncated s other default:t"] == 6


def test_samples_of_one_name_differ_in_their_labels_and_a_value_may_be_unknown() -> None:
    space = Metric("space", "Space.", [(("a",), 5.0), (("c",), 7.0)], ("at",))

    text = Metrics().text([space, gauge("epoch", "Epoch.", None)])[0].decode()

    samples = [line for line in text.splitlines() if line.startswith(("tuff_space", "tuff_epoch"))]
    assert samples == ['tuff_space{at="a"} 5.0', 'tuff_space{at="c"} 7.0']
    assert text.count("# TYPE tuff_space gauge") == text.count("# TYPE tuff_epoch gauge") == 1


def test_the_process_has_the_usual_metrics() -> None:
    shown = _samples(Metrics())

    usual = {
        "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
        "process_max_fds", "process_start_time_seconds", "process_virtual_memory_bytes",
    }  # fmt: skip
    assert usual <= shown.keys()
    assert shown["process_resident_memory_bytes"] > 1_000_000


async def test_a_store_that_is_down_or_hangs_hides_no_other_metric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with world.running() as service:
        await service.topics.create(AUDIT, {})
        published = await publish(service, b"a")
        await service.holds_and_positions.set_position(AUDIT, "report", published.first)
        reader = LagReader(service)
        shown = await reader.read()
        with monkeypatch.context() as patched:
            patched.setattr(scraped_metrics, "LAGS_WITHIN_S", 0.0)
            hangs: list[asyncio.Future[object]] = []
            patched.setattr(service.store, "in_thread_read", lambda _: _hanging(hangs))
            hung = [await reader.read() for _ in range(2)]
        for each in hangs:
            each.set_exception(StorageUnavailableError("the disk is gone"))
        after, again = [await reader.read() for _ in range(2)]
        at_once = await asyncio.gather(reader.read(), reader.read())
    down = await reader.read()

    assert [(each.name, each.lag.behind_ms) for each in shown.positions] == [("report", 0)]
    assert [lag for lags in (*hung, down) for kind in lags[:-1] for lag in kind] == []
    assert len(hangs) == 3  # of positions, groups and topics, once for both scrapes
    assert (after.positions, again.positions) == ((), shown.positions)  # the first read had hung
    assert at_once == [again, again]


def _hanging(hangs: list[asyncio.Future[object]]) -> asyncio.Future[object]:
    hangs.append(asyncio.Future())
    return hangs[-1]


def test_topics_above_the_bound_have_no_series_and_count_in_the_sum() -> None:
    topics = [(TopicId("default", f"t{number:04}"), 2, 10) for number in range(1_001)]

    shown = _samples(Metrics(), of_topics(reversed(topics)))

    series = [name for name in shown if name.startswith("tuff_topic_messages_total")]
    assert len(series) == 1_000
    assert "tuff_topic_messages_total default t1000" not in series
    assert shown["tuff_published_messages_total"] == 2_002
    assert shown["tuff_published_bytes_total"] == 10_010


def test_openmetrics_is_sent_where_the_scrape_asks_for_it() -> None:
    read = [counter("done", "D.", 3)]
    accept = "application/openmetrics-text;version=1.0.0,*/*;q=0.1"

    plain, plain_type = Metrics().text(read, accept="text/html")
    text, content_type = Metrics().text(read, accept=accept)

    assert plain_type.startswith("text/plain; version=0.0.4")
    assert b"# EOF" not in plain
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    families = {each.name: each for each in text_string_to_openmetrics(text.decode())}
    assert families["tuff_done"].samples[0].value == 3
