"""Polls whose messages come as columns, by Apache Arrow (protocol §3.4)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuff.calls import Call, PollQuestion, Response, maybe_pointer, poll_request
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId
from tuff.protocol.media import MediaType
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBatch:
    """The messages of one read as a record batch with the columns `id`, `value`, `timestamp`,
    `generation` and `write_pointer`; the rest is that of `tuff.Poll`."""

    batch: "RecordBatch"
    next_id: MessageId
    caught_up: bool
    blocked_by: int | None
    expired: bool

    def __len__(self) -> int:
        return int(self.batch.num_rows)


def poll_batch(topic: TopicId, question: PollQuestion) -> Call[PollBatch]:
    """A read in columns; the client needs pyarrow, and so does the server."""
    return Call(poll_request(topic, question, accept=MediaType.ARROW.value), _read)


def _read(response: Response) -> PollBatch:
    headers = response.headers
    return PollBatch(
        batch=_batch(response),
        next_id=MessageId.from_hex(headers["tuff-next"]),
        caught_up=headers.get("tuff-caught-up") == "true",
        blocked_by=maybe_pointer(headers.get("tuff-blocked-by"), what="Tuff-Blocked-By"),
        expired=headers.get("tuff-expired") == "true",
    )


def _batch(response: Response) -> "RecordBatch":
    from pyarrow import ArrowInvalid, ipc

    if response.headers.get("content-type") != MediaType.ARROW.value:
        raise BadRequestError(f"the reply is no {MediaType.ARROW.value}")
    try:
        # The columns stand on the bytes of the reply; none is copied.
        with ipc.open_stream(response.body) as stream:
            return stream.read_next_batch()
    except (ArrowInvalid, StopIteration) as error:
        raise BadRequestError(f"the reply is no Arrow stream: {error}") from None
