"""Where the client reports its work to a tracer. Off until `tuff.otel.instrument` sets one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Message

if TYPE_CHECKING:
    from tuff.otel import Tracer


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
