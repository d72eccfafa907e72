"""Traces and metrics of the client with OpenTelemetry (extra `otel`).

    import tuff.otel

    tuff.otel.instrument()

All clients of the process report to the providers that the program has configured. Span names,
attributes and metrics follow the semantic conventions for messaging. Exporters run in threads of
the SDK: one that fails or hangs delays no call.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from tuff.flows_and_repeated_calls import Call
from tuff.optional_packages import Extra
from tuff.protocol import operations
from tuff.protocol.attributes import HEADERS_COUNT_MAX, NO_ATTRIBUTES, checked_attributes
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import Operation
from tuff.protocol.requests import Message
from tuff.publish_calls import Checked, CheckedMessage
from tuff.replies import Poll
from tuff.requests_and_responses import Request
from tuff.tracing import TRACING
from tuff.version import __version__

with Extra("tuff.otel", "otel"):
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import (
        INVALID_SPAN,
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
        use_span,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

log = logging.getLogger(__name__)

Attributes = dict[str, str | int]

LINKS_COUNT_MAX = 128  # of one span; the SDK's own limit

# W3C trace context, whatever propagators the program uses for HTTP: it is the header of the message
# that clients in other languages know (protocol §3.1).
_W3C = TraceContextTextMapPropagator()
_CONTEXT_HEADERS = ("traceparent", "tracestate")


# messaging.operation.type and .name of the operations that are traced.
_TRACED: Mapping[Operation, tuple[str, str]] = {
    operations.PUBLISH: ("send", "publish"),
    operations.STORE: ("send", "store"),
    operations.POLL: ("receive", "poll"),
    operations.RUN_TRANSACTION: ("send", "run"),
    operations.COMMIT: ("settle", "commit"),
    operations.PREPARE: ("settle", "prepare"),
    operations.RESOLVE: ("settle", "resolve"),
    operations.COMMIT_OFFSETS: ("settle", "commit_offsets"),
}


def instrument(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and measure all clients of this process, with the global providers if none are given.
    A second call replaces the first."""
    TRACING.tracer = Tracer(tracer_provider, meter_provider)


def uninstrument() -> None:
    """Stop what `instrument` has started; it can be repeated."""
    TRACING.tracer = None


def context_of(message: Message) -> Context:
    """The trace context in the headers of a message, to continue or to link its trace; an empty one
    if it has none."""
    return _W3C.extract(_headers_of(message.headers), context=Context())


@contextmanager
def _harmless() -> Iterator[None]:
    """An error of a tracer, a sampler or a processor fails no message."""
    try:
        yield
    except Exception:
        log.warning("tracing failed, and the call goes on without it", exc_info=True)


class TracedCall:
    """The `call` under way, which may have more headers, in a span. Without attributes it is in
    none, such as a heartbeat. A poll that gets no message leaves no span, since a consumer that
    waits would fill the trace with them."""

    def __init__(self, call: Call[Any], attributes: Attributes, span: Span = INVALID_SPAN) -> None:
        self.call = call
        self.message_count = 0
        self._span = span
        self._attributes = attributes
        self._is_read = attributes.get("messaging.operation.type") == "receive"
        self._began_s = perf_counter()

    def answered(self, value: object) -> None:
        """What the call returns."""
        if self._is_read and isinstance(value, Poll):
            with _harmless():
                self.message_count = len(value.messages)
                self._span.set_attribute("messaging.batch.message_count", self.message_count)
                for link in _links(value.messages):
                    self._span.add_link(link.context)

    def end(self, measures: "_Measures", error: BaseException | None) -> None:
        """Report the end of the call."""
        if not self._attributes:
            return
        with _harmless():
            if error is not None:
                self._attributes["error.type"] = _fail(self._span, error)
            if error is not None or self.message_count or not self._is_read:
                self._span.end()
            measures.operation_s.record(perf_counter() - self._began_s, self._attributes)
            if self.message_count:
                measures.consumed.add(self.message_count, self._attributes)


class _Measures:
    def __init__(self, provider: MeterProvider | None) -> None:
        meter = get_meter("tuff", __version__, meter_provider=provider)
        self.operation_s = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a call to the server."
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that a program published."
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that a program received."
        )
        self.process_s = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of the processing of a batch."
        )


class Tracer:
    """What `tuff.tracing` reports to. None of its methods raises, or waits for anything."""

    def __init__(self, traces: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._tracer = get_tracer("tuff", __version__, tracer_provider=traces)
        self._measures = _Measures(meters)

    def created(self, topic: TopicId, messages: list[Checked]) -> list[Checked]:
        """The messages with the trace context in their headers."""
        with _harmless():
            attributes = _attributes("create", "create", topic)
            span = self._tracer.start_span(
                f"create {topic}",
                kind=SpanKind.PRODUCER,
                attributes={**attributes, **_count(len(messages))},
            )
            pairs = [(name, value.encode()) for name, value in _headers_for(span)]
            span.end()
            self._measures.sent.add(len(messages), attributes)
            return [_with_headers(message, pairs) for message in messages]
        return messages

    @contextmanager
    def sending(self, call: Call[Any], url: str) -> Iterator[TracedCall]:
        """Encloses one call."""
        traced = TracedCall(call, {})
        with _harmless():
            traced = self._begun(call, url)
        try:
            yield traced
        except BaseException as error:
            traced.end(self._measures, error)
            raise
        traced.end(self._measures, None)

    def _begun(self, call: Call[Any], url: str) -> TracedCall:
        if call.request.operation not in _TRACED:
            return TracedCall(call, {})
        attributes = _attributes_of(call.request, url)
        operation, topic = (
            attributes.get(f"messaging.{each}.name") for each in ("operation", "destination")
        )
        name = operation if topic is None else f"{operation} {topic}"
        span = self._tracer.start_span(str(name), kind=SpanKind.CLIENT, attributes=attributes)
        request = replace(call.request, trace_headers=_headers_for(span))
        return TracedCall(replace(call, request=request), attributes, span)

    def processing(
        self, topic: TopicId, messages: Sequence[Message], process: Callable[[], object]
    ) -> Callable[[], object]:
        """The function with a span around it, or around what it returns to await."""

        def run() -> object:
            span: Span = INVALID_SPAN
            began_s = perf_counter()
            with _harmless():
                span = self._process_span(topic, messages)
            end = partial(self._end_process, span, topic, began_s)
            try:
                with use_span(span, record_exception=False, set_status_on_exception=False):
                    result = process()
            except BaseException as error:
                end(error)
                raise
            if isawaitable(result):
                return _awaited(result, span, end)
            end(None)
            return result

        return run

    def _process_span(self, topic: TopicId, messages: Sequence[Message]) -> Span:
        attributes = {**_attributes("process", "process", topic), **_count(len(messages))}
        return self._tracer.start_span(
            f"process {topic}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(messages),
        )

    def _end_process(
        self, span: Span, topic: TopicId, began_s: float, error: BaseException | None
    ) -> None:
        with _harmless():
            attributes = _attributes("process", "process", topic)
            if error is not None:
                attributes["error.type"] = _fail(span, error)
            span.end()
            self._measures.process_s.record(perf_counter() - began_s, attributes)


async def _awaited(
    work: Awaitable[object], span: Span, end: Callable[[BaseException | None], None]
) -> object:
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            result = await work
    except BaseException as error:
        end(error)
        raise
    end(None)
    return result


def _fail(span: Span, error: BaseException) -> str:
    name = type(error).__qualname__
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    return name


def _headers_for(span: Span) -> tuple[tuple[str, str], ...]:
    headers: dict[str, str] = {}
    _W3C.inject(headers, context=set_span_in_context(span))
    return tuple(headers.items())


def _attributes_of(request: Request, url: str) -> Attributes:
    """The attributes of the span of a call."""
    kind, name = _TRACED[request.operation]
    attributes = _attributes(name, kind, None)
    parts = urlsplit(url)
    attributes["server.address"] = parts.hostname or ""
    if parts.port is not None:
        attributes["server.port"] = parts.port
    given = dict(zip(request.operation.parameters, request.parameters, strict=True))
    if "t" in given:
        attributes["messaging.destination.name"] = f"{given['ns']}:{given['t']}"
    if "g" in given:
        attributes["messaging.consumer.group.name"] = f"{given['ns']}:{given['g']}"
    return attributes


def _attributes(name: str, kind: str, topic: TopicId | None) -> Attributes:
    found: Attributes = {
        "messaging.system": "tuff",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    return found if topic is None else {**found, "messaging.destination.name": str(topic)}


def _count(count: int) -> Attributes:
    return {"messaging.batch.message_count": count} if count != 1 else {}


def _links(messages: Sequence[Message]) -> list[Link]:
    """One link for each span that created some of the messages."""
    contexts = (
        get_current_span(context_of(message)).get_span_context()
        for message in messages
        if message.header("traceparent") is not None
    )
    found = {(each.trace_id, each.span_id): each for each in contexts if each.is_valid}
    return [Link(context) for context in found.values()][:LINKS_COUNT_MAX]


def _headers_of(headers: Sequence[tuple[str, bytes]]) -> Mapping[str, str]:
    return {
        name: value.decode("ascii", errors="replace")
        for name, value in headers
        if name in _CONTEXT_HEADERS
    }


def _with_headers(message: Checked, pairs: Sequence[tuple[str, bytes]]) -> Checked:
    """The message with these headers, unless it has a trace context, or no room for them."""
    if not pairs:
        return message
    found = CheckedMessage(message) if isinstance(message, bytes) else message
    before = found.attributes or NO_ATTRIBUTES
    if any(name in _CONTEXT_HEADERS for name, _ in before.headers):
        return message
    headers = [*before.headers, *pairs]
    if len(headers) > HEADERS_COUNT_MAX:
        return message
    try:
        return found._replace(attributes=checked_attributes(before.key, before.tags, headers))
    except BadRequestError:  # too many bytes: the message counts for more than its trace
        return message
