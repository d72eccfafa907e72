"""All errors that programs catch.

Those of the server's refusals are defined in `tuff.protocol.errors`, which the server raises too.
Defined here are those that only the client raises: no response came, an object was used in a wrong
state, or a payload can't be read.
"""

from tuff.protocol.errors import *  # noqa: F403 - each of its errors, also one that is added
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Message


class WrongStateError(TuffError, RuntimeError):
    """An object was used at the wrong moment: after its end, outside of a transaction, by two
    threads or tasks at once, or in another process or event loop than its own. Nothing was sent."""

    code = "wrong_state"


class ConnectionLostError(TuffError, ConnectionError):
    """The server can't be reached, or the connection was lost before its response came.

    `outcome_unknown`: the server may have executed the request.
    """

    code = "connection_lost"

    def __init__(self, detail: str, *, outcome_unknown: bool) -> None:
        super().__init__(detail)
        self.outcome_unknown = outcome_unknown
        self.retry_safe = not outcome_unknown


class ClientClosedError(WrongStateError):
    """The client was closed, so nothing was sent. No retry helps."""

    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("the client is closed; connect again")


class ServerNotTrustedError(ConnectionLostError):
    """This machine does not trust the server's certificate, so nothing was sent."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, outcome_unknown=False)
        self.retry_safe = False


class ServerUnreachableError(ConnectionLostError):
    """No connection was made, so nothing was sent.

    `tried`: each address, with the reason in brackets.
    """

    def __init__(self, *tried: str) -> None:
        super().__init__(
            f"no server answers at {' or '.join(tried)}; start one with `tuff serve`, or give "
            "another address",
            outcome_unknown=False,
        )
        self.tried = tried


class BufferFullError(TuffError):
    """The buffer of a publisher stayed full for `max_block`. The message was not added."""

    code = "buffer_full"


class DeserializationError(TuffError, ValueError):
    """The serializer of a topic can't read a payload; `message` has it, with the message's id."""

    code = "deserialization_failed"

    def __init__(self, topic: TopicId, message: Message, cause: Exception) -> None:
        super().__init__(
            f"the payload of message {message.id.hex()} of {topic} can't be deserialized "
            f"({type(cause).__name__}: {cause}); skip it, or publish `error.message` elsewhere"
        )
        self.topic = topic
        self.message = message


class NotADeadLetterError(TuffError, ValueError):
    """A message of a retry or dead-letter topic has another form."""

    code = "not_a_dead_letter"


class OutcomeUnknownError(ConnectionLostError):
    """The transaction may have committed: neither `rollback_tx` nor `post_commit` has run."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, outcome_unknown=True)


class OutsideTransactionWarning(UserWarning):
    """Messages were published while a transaction block of the same client was open, and not as a
    part of that transaction: they are visible at once, and stay if it rolls back."""
