"""Where the client reports its work to a tracer. Off until `tuff.otel.instrument` sets one."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Message

if TYPE_CHECKING:
    from tuff.flows_and_repeated_calls import Call
    from tuff.publish_calls import Checked


class TracedCall(Protocol):
    """A call under way."""

    @property
    def call(self) -> "Call[Any]":
        """The call to send, which may have more headers."""

    def answered(self, value: object) -> None: ...


class Tracer(Protocol):
    """None of its methods raises, or waits for anything."""

    def created(self, topic: TopicId, messages: "list[Checked]") -> "list[Checked]":
        """The messages with the trace context in their headers."""

    def sending(self, call: "Call[Any]", url: str) -> AbstractContextManager[TracedCall]:
        """Encloses one call."""

    def processing(
        self, topic: TopicId, messages: Sequence[Message], process: Callable[[], object]
    ) -> Callable[[], object]:
        """The function with a span around it, or around what it returns to await."""


class _Tracing:
    __slots__ = ("tracer",)

    def __init__(self) -> None:
        self.tracer: Tracer | None = None


TRACING = _Tracing()  # of the process, as the providers of OpenTelemetry are


def processing(
    topic: TopicId, messages: Sequence[Message], process: Callable[[], object]
) -> Callable[[], object]:
    """The function that processes these messages, in a span if there is a tracer."""
    tracer = TRACING.tracer
    return process if tracer is None else tracer.processing(topic, messages, process)
