"""Spans of requests, which OpenTelemetry sends to a collector (`server.otlp_endpoint`).

Only a server with that setting imports this module. Spans wait in a bounded queue of the SDK, whose
thread exports them; a collector that is away or hangs costs spans, and no request waits for it.
"""

import logging
from functools import partial

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kernel.requests_and_replies import Call, Reply, Request
from tuff.protocol.errors import TuffError
from tuff.protocol.operations import Operation
from tuff.version import __version__

EXPORT_WITHIN_S = 2.0  # seconds; one export, its repetitions included

_W3C = TraceContextTextMapPropagator()


class RequestSpans:
    """Makes the spans of a server. Its variables OTEL_* of the environment are those of the SDK:
    the sampler, the headers of exports, the size of the queue."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: the URL of a collector that takes OTLP over HTTP, without `/v1/traces`."""
        # A failed export is one line, and not the stack of the library.
        logging.getLogger("opentelemetry").addFilter(_without_stack)
        resource = Resource.create({"service.name": "tuff", "service.version": __version__})
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_WITHIN_S)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tuff.server", __version__)

    def watch(self, call: Call, operation: Operation, request: Request) -> None:
        """Begin a span, which the reply ends."""
        call.watch(partial(_end, self._begun(operation, request)))

    def shutdown(self) -> None:
        """Export the spans that wait. Blocks, for some seconds if the collector does not answer."""
        self._provider.shutdown()

    def _begun(self, operation: Operation, request: Request) -> Span:
        parameters = request.parameters
        attributes = {"http.request.method": operation.method, "http.route": operation.path}
        if "t" in parameters:
            topic = f"{parameters.get('ns', '')}:{parameters['t']}"
            attributes |= {"messaging.system": "tuff", "messaging.destination.name": topic}
        parent = Context()
        if request.traceparent is not None:
            parent = _W3C.extract({"traceparent": request.traceparent}, context=parent)
        return self._tracer.start_span(
            str(operation), context=parent, kind=SpanKind.SERVER, attributes=attributes
        )


def _end(span: Span, reply: Reply | Exception) -> None:
    status = reply.status if isinstance(reply, Reply | TuffError) else 500
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _without_stack(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    return True
