"""Spans and metrics of the client: from a publish, by way of the message, to its consumer."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tuff
import tuff.otel
from tests.http.process import ServerProcess

ORDERS = tuff.TopicId("traces", "orders")


class Recorded:
    """The spans and metrics of one test."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def measured(self, name: str) -> int:
        """The sum of a counter, or the number of observations of a histogram."""
        data = self.reader.get_metrics_data()
        assert data is not None
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return sum(getattr(each, "count", None) or each.value for each in points)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    tuff.otel.instrument(made.traces, made.meters)
    yield made
    tuff.otel.uninstrument()


@pytest.fixture
def orders(client: tuff.Client) -> Iterator[tuff.TopicId]:
    client.topics.create(ORDERS)
    yield ORDERS
    client.topics.delete(ORDERS)


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def test_the_trace_of_a_publish_reaches_its_consumer(
    client: tuff.Client, orders: tuff.TopicId, recorded: Recorded
) -> None:
    with recorded.traces.get_tracer("shop").start_as_current_span("request"):
        client.publish(orders, "a")
    with client.transaction() as tx:
        tx.publish(orders, "b", "c")
    with client.publisher() as publisher:
        publisher.publish(orders, "d")
    with client.consumer(orders, group="billing") as consumer:
        consumer.run(lambda batch: consumer.stop())

    creates = recorded.named("create traces:orders")
    (request,), (received,) = recorded.named("request"), recorded.named("poll traces:orders:0")
    (processed,) = recorded.named("process traces:orders:0")
    assert ids(creates[0])[0] == ids(request)[0]
    assert [span.kind for span in creates] == [SpanKind.PRODUCER] * 3
    assert processed.kind is SpanKind.CONSUMER
    assert linked(processed) == linked(received) == {ids(span) for span in creates}
    assert len(recorded.named("commit")) == 1
    assert recorded.measured("messaging.client.sent.messages") == 4
    assert recorded.measured("messaging.client.consumed.messages") == 4
    assert recorded.measured("messaging.process.duration") == 1


def test_spans_have_the_attributes_of_the_conventions_and_of_a_failure(
    client: tuff.Client, server: ServerProcess, recorded: Recorded
) -> None:
    with pytest.raises(tuff.TopicNotFoundError):
        client.publish(tuff.TopicId("traces", "missing"), "a", "b")

    (create,) = recorded.named("create traces:missing")
    (publish,) = recorded.named("publish traces:missing")
    assert publish.attributes == {
        "messaging.system": "tuff",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "traces:missing",
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "error.type": "TopicNotFoundError",
    }
    assert (publish.kind, publish.status.status_code) == (SpanKind.CLIENT, StatusCode.ERROR)
    assert create.attributes is not None
    assert create.attributes["messaging.batch.message_count"] == 2


def test_a_message_keeps_a_trace_context_that_it_has_and_other_headers(
    client: tuff.Client, orders: tuff.TopicId, recorded: Recorded
) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    many = {f"h{number}": "x" for number in range(64)}
    client.publish(
        orders,
        tuff.NewMessage("own", headers={"traceparent": own}),
        tuff.NewMessage("new", headers={"x": "y"}),
        tuff.NewMessage("full", headers=many),
    )

    first, second, third = client.poll(orders)
    (create,) = recorded.named("create traces:orders")
    assert first.header("traceparent") == own.encode()
    trace_id, span_id = ids(create)
    assert str(second.header("traceparent")).startswith(f"b'00-{trace_id:032x}-{span_id:016x}-")
    assert second.header("x") == b"y"
    assert len(third.headers) == 64
    assert third.header("traceparent") is None


def test_an_asyncio_consumer_runs_within_its_span(
    client: tuff.Client, server: ServerProcess, orders: tuff.TopicId, recorded: Recorded
) -> None:
    async def consume() -> None:
        async with tuff.AsyncClient(server.url) as connected:
            await connected.publish(orders, "a")

            async def work(batch: tuff.Batch) -> None:
                await asyncio.sleep(0)
                with recorded.traces.get_tracer("shop").start_as_current_span("work"):
                    consumer.stop()

            async with connected.consumer(orders, group="async") as consumer:
                await consumer.run(work)

    asyncio.run(consume())

    (work,), (processed,) = recorded.named("work"), recorded.named("process traces:orders:0")
    assert work.parent is not None
    assert (work.parent.trace_id, work.parent.span_id) == ids(processed)


def test_a_subscriber_processes_within_a_span_that_shows_its_failure(
    client: tuff.Client, orders: tuff.TopicId, table: tuff.TransactionalTable, recorded: Recorded
) -> None:
    client.publish(orders, "a")

    def fail_once(messages: object, tx: object) -> None:
        if not recorded.named("process traces:orders:0"):
            raise ValueError("not yet")

    subscriber = client.subscriber(
        orders, fail_once, positions=tuff.TablePositions(table, "traced"), wait=0, attempts=2
    )
    while len(recorded.named("process traces:orders:0")) < 2:
        subscriber.step()

    failed, done = recorded.named("process traces:orders:0")
    (create,) = recorded.named("create traces:orders")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert done.status.status_code is StatusCode.UNSET
    assert linked(failed) == linked(done) == {ids(create)}


def test_an_empty_poll_leaves_no_span(
    client: tuff.Client, orders: tuff.TopicId, recorded: Recorded
) -> None:
    client.poll(orders)

    assert recorded.exporter.get_finished_spans() == ()
    assert recorded.measured("messaging.client.operation.duration") == 1


class Broken(SpanProcessor):
    def on_start(self, span: Span, parent_context: object = None) -> None:
        raise OSError("the collector is away")


def test_a_tracer_that_fails_fails_no_message(
    client: tuff.Client, orders: tuff.TopicId, recorded: Recorded
) -> None:
    recorded.traces.add_span_processor(Broken())
    seen = []

    client.publish(orders, "a")
    with client.consumer(orders, group="broken") as consumer:
        consumer.run(lambda batch: (seen.extend(batch), consumer.stop()))

    assert [message.payload for message in seen] == [b"a"]


def test_without_instrument_a_message_has_no_headers(
    client: tuff.Client, orders: tuff.TopicId
) -> None:
    client.publish(orders, "a")

    assert client.poll(orders)[0].headers == ()
