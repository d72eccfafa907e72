"""All errors that programs catch.

Those of the server's refusals are defined in `tuff.protocol.errors`, which the server raises too.
Defined here are those that only the client raises: no response came, an object was used in a wrong
state, or a payload can't be read.
"""

from tuff.protocol.errors import ArchiveUnavailableError as ArchiveUnavailableError
from tuff.protocol.errors import BadRequestError as BadRequestError
from tuff.protocol.errors import ChangeSetTooLargeError as ChangeSetTooLargeError
from tuff.protocol.errors import CrossSiteError as CrossSiteError
from tuff.protocol.errors import DamagedRecordError as DamagedRecordError
from tuff.protocol.errors import DelayedNotFoundError as DelayedNotFoundError
from tuff.protocol.errors import EmptyPublishError as EmptyPublishError
from tuff.protocol.errors import FencedMemberEpochError as FencedMemberEpochError
from tuff.protocol.errors import ForbiddenError as ForbiddenError
from tuff.protocol.errors import FuturePositionError as FuturePositionError
from tuff.protocol.errors import GroupError as GroupError
from tuff.protocol.errors import GroupExistsError as GroupExistsError
from tuff.protocol.errors import GroupNotEmptyError as GroupNotEmptyError
from tuff.protocol.errors import GroupNotFoundError as GroupNotFoundError
from tuff.protocol.errors import HoldNotFoundError as HoldNotFoundError
from tuff.protocol.errors import HostNotAllowedError as HostNotAllowedError
from tuff.protocol.errors import InternalError as InternalError
from tuff.protocol.errors import InvalidDelayError as InvalidDelayError
from tuff.protocol.errors import InvalidMessageIdError as InvalidMessageIdError
from tuff.protocol.errors import InvalidNameError as InvalidNameError
from tuff.protocol.errors import InvalidTimeoutError as InvalidTimeoutError
from tuff.protocol.errors import InvalidTopicPropertiesError as InvalidTopicPropertiesError
from tuff.protocol.errors import InvalidTransactionError as InvalidTransactionError
from tuff.protocol.errors import InvalidTtlError as InvalidTtlError
from tuff.protocol.errors import LeaseLostError as LeaseLostError
from tuff.protocol.errors import MethodNotAllowedError as MethodNotAllowedError
from tuff.protocol.errors import NotAcceptableError as NotAcceptableError
from tuff.protocol.errors import NotFoundError as NotFoundError
from tuff.protocol.errors import OverloadedError as OverloadedError
from tuff.protocol.errors import OwnershipMovingError as OwnershipMovingError
from tuff.protocol.errors import PartitionNotAssignedError as PartitionNotAssignedError
from tuff.protocol.errors import PartitionRequiredError as PartitionRequiredError
from tuff.protocol.errors import PartitionRetiredError as PartitionRetiredError
from tuff.protocol.errors import PositionNotFoundError as PositionNotFoundError
from tuff.protocol.errors import QuotaExceededError as QuotaExceededError
from tuff.protocol.errors import RequestForgottenError as RequestForgottenError
from tuff.protocol.errors import RequestIdReusedError as RequestIdReusedError
from tuff.protocol.errors import RequestTooLargeError as RequestTooLargeError
from tuff.protocol.errors import ServerNotFoundError as ServerNotFoundError
from tuff.protocol.errors import ShuttingDownError as ShuttingDownError
from tuff.protocol.errors import SinkEpochOpenError as SinkEpochOpenError
from tuff.protocol.errors import SinkEpochSupersededError as SinkEpochSupersededError
from tuff.protocol.errors import SinkError as SinkError
from tuff.protocol.errors import SinkFencedError as SinkFencedError
from tuff.protocol.errors import SinkInUseError as SinkInUseError
from tuff.protocol.errors import SinkNotFoundError as SinkNotFoundError
from tuff.protocol.errors import StaleMemberEpochError as StaleMemberEpochError
from tuff.protocol.errors import StartingError as StartingError
from tuff.protocol.errors import StartWithdrawnError as StartWithdrawnError
from tuff.protocol.errors import StorageOutcomeUnknownError as StorageOutcomeUnknownError
from tuff.protocol.errors import StorageUnavailableError as StorageUnavailableError
from tuff.protocol.errors import TooManyGroupsError as TooManyGroupsError
from tuff.protocol.errors import TooManyHoldsError as TooManyHoldsError
from tuff.protocol.errors import TooManyMembersError as TooManyMembersError
from tuff.protocol.errors import TooManyPositionsError as TooManyPositionsError
from tuff.protocol.errors import TooManyPreparedError as TooManyPreparedError
from tuff.protocol.errors import TooManySinksError as TooManySinksError
from tuff.protocol.errors import TopicExistsError as TopicExistsError
from tuff.protocol.errors import TopicHeldError as TopicHeldError
from tuff.protocol.errors import TopicNotFoundError as TopicNotFoundError
from tuff.protocol.errors import TopicNotMovableError as TopicNotMovableError
from tuff.protocol.errors import TransactionAbortedError as TransactionAbortedError
from tuff.protocol.errors import TransactionCommittedError as TransactionCommittedError
from tuff.protocol.errors import TransactionConflictError as TransactionConflictError
from tuff.protocol.errors import TransactionError as TransactionError
from tuff.protocol.errors import TransactionInvalidatedError as TransactionInvalidatedError
from tuff.protocol.errors import TransactionNotInProgressError as TransactionNotInProgressError
from tuff.protocol.errors import TransactionNotPreparedError as TransactionNotPreparedError
from tuff.protocol.errors import TransactionPreparedError as TransactionPreparedError
from tuff.protocol.errors import TransactionsInProgressError as TransactionsInProgressError
from tuff.protocol.errors import TransactionsUnavailableError as TransactionsUnavailableError
from tuff.protocol.errors import TransactionTimedOutError as TransactionTimedOutError
from tuff.protocol.errors import TransactionUnknownError as TransactionUnknownError
from tuff.protocol.errors import TuffError as TuffError
from tuff.protocol.errors import UnauthenticatedError as UnauthenticatedError
from tuff.protocol.errors import UnavailableError as UnavailableError
from tuff.protocol.errors import UnknownMemberError as UnknownMemberError
from tuff.protocol.errors import UnreleasedInstanceIdError as UnreleasedInstanceIdError
from tuff.protocol.errors import UnsupportedMediaTypeError as UnsupportedMediaTypeError
from tuff.protocol.errors import UpgradeRequiredError as UpgradeRequiredError
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
