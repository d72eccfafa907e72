"""Tuff: publish a message if, and only if, your own change commits.

The imports below are the only list of the public names. Type checkers read them as they are. At
run time a name is loaded when it is first used, so that importing `tuff` costs a program little.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuff.aio.client import AsyncClient as AsyncClient
    from tuff.aio.context import AsyncTransactionContext as AsyncTransactionContext
    from tuff.aio.groups import AsyncConsumer as AsyncConsumer
    from tuff.aio.publisher import AsyncPublisher as AsyncPublisher
    from tuff.aio.share_groups import AsyncShareConsumer as AsyncShareConsumer
    from tuff.aio.sql import AsyncSqlResolver as AsyncSqlResolver
    from tuff.aio.sql import AsyncSqlTransaction as AsyncSqlTransaction
    from tuff.aio.subscriber import AsyncSubscriber as AsyncSubscriber
    from tuff.aio.typed_topic import AsyncTypedTopic as AsyncTypedTopic
    from tuff.blocking.client import Client as Client
    from tuff.blocking.context import TransactionContext as TransactionContext
    from tuff.blocking.groups import Consumer as Consumer
    from tuff.blocking.publisher import Publisher as Publisher
    from tuff.blocking.share_groups import ShareConsumer as ShareConsumer
    from tuff.blocking.sql import SqlResolver as SqlResolver
    from tuff.blocking.sql import SqlTransaction as SqlTransaction
    from tuff.blocking.subscriber import Subscriber as Subscriber
    from tuff.blocking.typed_topic import TypedTopic as TypedTopic
    from tuff.calls import PollBatch as PollBatch
    from tuff.calls import PollQuestion as PollQuestion
    from tuff.client_errors import BufferFullError as BufferFullError
    from tuff.client_errors import ClientClosedError as ClientClosedError
    from tuff.client_errors import ConnectionLostError as ConnectionLostError
    from tuff.client_errors import DeserializationError as DeserializationError
    from tuff.client_errors import OutcomeUnknownError as OutcomeUnknownError
    from tuff.client_errors import ServerNotTrustedError as ServerNotTrustedError
    from tuff.client_errors import ServerUnreachableError as ServerUnreachableError
    from tuff.client_errors import WrongStateError as WrongStateError
    from tuff.consumer_plan import Batch as Batch
    from tuff.consumer_plan import DeliveryMode as DeliveryMode
    from tuff.dead_letters import DeadLetter as DeadLetter
    from tuff.dead_letters import NotADeadLetterError as NotADeadLetterError
    from tuff.dead_letters import RetryPolicy as RetryPolicy
    from tuff.dead_letters import read_dead_letter as read_dead_letter
    from tuff.new_messages import NewMessage as NewMessage
    from tuff.participant import AsyncPositions as AsyncPositions
    from tuff.participant import AsyncTransactionAware as AsyncTransactionAware
    from tuff.participant import Positions as Positions
    from tuff.participant import TransactionAware as TransactionAware
    from tuff.participant import hook_transaction_id as hook_transaction_id
    from tuff.protocol.attributes import Attributes as Attributes
    from tuff.protocol.errors import ArchiveUnavailableError as ArchiveUnavailableError
    from tuff.protocol.errors import BadRequestError as BadRequestError
    from tuff.protocol.errors import ChangeSetTooLargeError as ChangeSetTooLargeError
    from tuff.protocol.errors import CrossSiteError as CrossSiteError
    from tuff.protocol.errors import DamagedRecordError as DamagedRecordError
    from tuff.protocol.errors import DelayedNotFoundError as DelayedNotFoundError
    from tuff.protocol.errors import EmptyPublishError as EmptyPublishError
    from tuff.protocol.errors import FencedMemberEpochError as FencedMemberEpochError
    from tuff.protocol.errors import ForbiddenError as ForbiddenError
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
    from tuff.protocol.ids import MessageId as MessageId
    from tuff.protocol.ids import TopicId as TopicId
    from tuff.protocol.requests import Ack as Ack
    from tuff.protocol.requests import Isolation as Isolation
    from tuff.protocol.requests import Message as Message
    from tuff.protocol.requests import PublishEntry as PublishEntry
    from tuff.protocol.requests import RollbackDetail as RollbackDetail
    from tuff.protocol.transaction import InvalidReason as InvalidReason
    from tuff.protocol.transaction import Transaction as Transaction
    from tuff.protocol.transaction import TransactionState as TransactionState
    from tuff.protocol.transaction import TransactionStatus as TransactionStatus
    from tuff.protocol.transaction import TransactionType as TransactionType
    from tuff.protocol.transaction import VisibilityLevel as VisibilityLevel
    from tuff.replies import ClusterLeader as ClusterLeader
    from tuff.replies import ClusterServer as ClusterServer
    from tuff.replies import ClusterState as ClusterState
    from tuff.replies import DelayedMessage as DelayedMessage
    from tuff.replies import Drain as Drain
    from tuff.replies import Epoch as Epoch
    from tuff.replies import Explanation as Explanation
    from tuff.replies import Group as Group
    from tuff.replies import GroupMember as GroupMember
    from tuff.replies import GroupPartition as GroupPartition
    from tuff.replies import Health as Health
    from tuff.replies import HealthCheck as HealthCheck
    from tuff.replies import HealthStatus as HealthStatus
    from tuff.replies import Hold as Hold
    from tuff.replies import Invalids as Invalids
    from tuff.replies import NamedPosition as NamedPosition
    from tuff.replies import Offsets as Offsets
    from tuff.replies import OpenTransaction as OpenTransaction
    from tuff.replies import Outcome as Outcome
    from tuff.replies import Overview as Overview
    from tuff.replies import Poll as Poll
    from tuff.replies import Prepared as Prepared
    from tuff.replies import PreparedTransaction as PreparedTransaction
    from tuff.replies import Published as Published
    from tuff.replies import PublishedDelayed as PublishedDelayed
    from tuff.replies import Renewed as Renewed
    from tuff.replies import ShareGroup as ShareGroup
    from tuff.replies import Sink as Sink
    from tuff.replies import SnapshotFile as SnapshotFile
    from tuff.replies import Split as Split
    from tuff.replies import Splits as Splits
    from tuff.replies import TopicInfo as TopicInfo
    from tuff.replies import TopicOwner as TopicOwner
    from tuff.replies import TopicOwners as TopicOwners
    from tuff.replies import Truncated as Truncated
    from tuff.serializers import BYTES as BYTES
    from tuff.serializers import STR as STR
    from tuff.serializers import Serializer as Serializer
    from tuff.serializers import TypedMessage as TypedMessage
    from tuff.serializers import avro_serializer as avro_serializer
    from tuff.serializers import json_serializer as json_serializer
    from tuff.sql.resolver import SqlSettled as SqlSettled
    from tuff.subscriber_flows import TablePositions as TablePositions
    from tuff.tables.hbase_table import HBaseTransactionalTable as HBaseTransactionalTable
    from tuff.tables.leveldb_table import TransactionalTable as TransactionalTable
    from tuff.version import __version__ as __version__
else:
    # Hidden from type checkers, which would take every name for one that is there.
    _modules = {}

    def _modules_by_name() -> dict[str, str]:
        """Where each public name is defined, as the imports above say."""
        import ast
        from pkgutil import get_data

        return {
            alias.name: node.module
            for node in ast.walk(ast.parse(get_data(__name__, "__init__.py")))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname is not None
        }

    def __getattr__(name: str) -> object:
        _modules.update(_modules or _modules_by_name())
        if name == "__all__":
            return list(_modules)
        if name not in _modules:
            raise AttributeError(f"module 'tuff' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_modules[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
