"""Spans of requests that the server exports (server.otlp_endpoint, protocol §8)."""

import http.server
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.http.calls import Topic
from tests.http.client import ok, until
from tests.http.conftest import NewServer
from tests.http.process import serve

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BSP_EXPORT_TIMEOUT": "1000"}  # ms
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(body, is_packed=self.headers["Content-Encoding"] is not None)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body: bytes, *, is_packed: bool) -> None:
        assert not is_packed
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def attributes(span: Span) -> dict[str, object]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_request_is_a_span_and_a_child_of_its_client(
    collector: Collector, new_server: NewServer
) -> None:
    running = new_server(f"server.otlp_endpoint={collector.url}")
    topic = Topic(running.client(), "shop", "orders")
    ok(topic.create())
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    topic.client.send("GET", topic.path, headers=headers)
    topic.client.get("/v1/namespaces/shop/topics/missing")
    running.terminate()

    created, shown, missing = collector.spans
    assert created.name == "PUT /v1/namespaces/{ns}/topics/{t}"
    assert (shown.trace_id.hex(), shown.parent_span_id.hex()) == (TRACE, PARENT)
    assert shown.kind == Span.SPAN_KIND_SERVER
    assert attributes(shown) == {
        "http.request.method": "GET",
        "http.route": "/v1/namespaces/{ns}/topics/{t}",
        "http.response.status_code": 200,
        "messaging.system": "tuff",
        "messaging.destination.name": "shop:orders",
    }
    assert attributes(missing)["http.response.status_code"] == 404


@pytest.mark.parametrize("answers", [False, True], ids=["no collector", "a collector that hangs"])
def test_a_collector_that_fails_delays_no_request_and_no_stop(
    answers: bool, tmp_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        endpoint = f"server.otlp_endpoint=http://127.0.0.1:{listening.getsockname()[1]}"
        if not answers:
            listening.close()
        with serve(tmp_path, endpoint, environment={**os.environ, **SOON}) as running:
            topic = Topic(running.client(), "shop", "orders")
            ok(topic.create())
            if answers:
                accepted, _ = listening.accept()  # the first export, which gets no reply
            else:
                until(lambda: "component=opentelemetry" in running.stderr())
            ok(topic.publish("meanwhile"))
            assert topic.committed() == ["meanwhile"]
            assert running.terminate() == 0
            if answers:
                accepted.close()


def test_an_endpoint_that_is_no_url_is_refused(new_server: NewServer) -> None:
    with pytest.raises(AssertionError, match=r"server\.otlp_endpoint is a URL"):
        new_server("server.otlp_endpoint=collector:4318")
