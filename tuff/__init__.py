"""Tuff: publish a message if, and only if, your own change commits.

Names are loaded when they are first used, so that importing `tuff` costs a program little.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuff.async_client import AsyncClient
    from tuff.async_publisher import AsyncPublisher
    from tuff.calls import PollBatch, PollQuestion
    from tuff.client import Client
    from tuff.commit import (
        AsyncTransactionAware,
        OutcomeUnknownError,
        TransactionAware,
        hook_transaction_id,
    )
    from tuff.context import AsyncTransactionContext, TransactionContext
    from tuff.protocol.errors import (
        BadRequestError,
        DamagedRecordError,
        EmptyPublishError,
        InternalError,
        InvalidTtlError,
        OverloadedError,
        RequestTooLargeError,
        SinkEpochOpenError,
        SinkEpochSupersededError,
        SinkError,
        SinkFencedError,
        SinkInUseError,
        SinkNotFoundError,
        StorageUnavailableError,
        TooManySinksError,
        TopicExistsError,
        TopicNotFoundError,
        TransactionAbortedError,
        TransactionCommittedError,
        TransactionConflictError,
        TransactionError,
        TransactionInvalidatedError,
        TransactionNotInProgressError,
        TransactionsUnavailableError,
        TransactionTimedOutError,
        TransactionUnknownError,
        TuffError,
    )
    from tuff.protocol.ids import MessageId, TopicId
    from tuff.protocol.requests import Isolation, Message, PublishEntry, RollbackDetail
    from tuff.protocol.transaction import (
        Transaction,
        TransactionState,
        TransactionType,
        VisibilityLevel,
    )
    from tuff.publisher import Publisher
    from tuff.replies import (
        Epoch,
        Health,
        HealthCheck,
        Hold,
        NamedPosition,
        Offsets,
        Outcome,
        Poll,
        Published,
        Sink,
        Split,
        Splits,
        TopicInfo,
    )
    from tuff.subscriber import (
        AsyncPositions,
        AsyncSubscriber,
        Positions,
        Subscriber,
        TablePositions,
    )
    from tuff.tables.hbase_table import HBaseTransactionalTable
    from tuff.tables.leveldb_table import TransactionalTable
    from tuff.transport import ClientClosedError, ConnectionLostError, ServerNotTrustedError
    from tuff.version import __version__ as __version__

_HOMES = {
    "tuff.async_client": ("AsyncClient",),
    "tuff.async_publisher": ("AsyncPublisher",),
    "tuff.calls": ("PollBatch", "PollQuestion"),
    "tuff.client": ("Client",),
            "tuff.context": ("AsyncTransactionContext", "TransactionContext"),
    "tuff.tables.hbase_table": ("HBaseTransactionalTable",),
    "tuff.commit": (
        "AsyncTransactionAware", "OutcomeUnknownError", "TransactionAware", "hook_transaction_id",
    ),
        "tuff.protocol.errors": (
        "BadRequestError", "DamagedRecordError", "EmptyPublishError", "InternalError",
        "InvalidTtlError", "OverloadedError", "RequestTooLargeError",
        "SinkEpochOpenError", "SinkEpochSupersededError", "SinkError", "SinkFencedError",
        "SinkInUseError", "SinkNotFoundError", "TooManySinksError",
        "StorageUnavailableError", "TopicExistsError", "TopicNotFoundError",
        "TransactionAbortedError", "TransactionCommittedError", "TransactionConflictError",
        "TransactionError", "TransactionInvalidatedError", "TransactionNotInProgressError",
        "TransactionsUnavailableError", "TransactionTimedOutError", "TransactionUnknownError",
        "TuffError",
    ),
    "tuff.protocol.ids": ("MessageId", "TopicId"),
    "tuff.protocol.requests": ("Isolation", "Message", "PublishEntry", "RollbackDetail"),
    "tuff.protocol.transaction": (
        "Transaction", "TransactionState", "TransactionType", "VisibilityLevel",
    ),
    "tuff.publisher": ("Publisher",),
    "tuff.replies": (
        "Epoch", "Health", "HealthCheck", "Hold", "NamedPosition", "Offsets", "Outcome", "Poll",
        "Published", "Sink", "Split", "Splits", "TopicInfo",
    ),
    "tuff.subscriber": (
        "AsyncPositions", "AsyncSubscriber", "Positions", "Subscriber", "TablePositions",
    ),
    "tuff.tables.leveldb_table": ("TransactionalTable",),
    "tuff.transport": ("ClientClosedError", "ConnectionLostError", "ServerNotTrustedError"),
    "tuff.version": ("__version__",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the order of the story, not of the alphabet
    "Client", "AsyncClient", "TopicId", "MessageId", "Message", "Poll",
    "Published", "TopicInfo", "PollQuestion", "PollBatch", "Split", "Splits", "Hold",
    "NamedPosition",
    "Offsets", "RollbackDetail", "Transaction", "TransactionType", "VisibilityLevel",
    "TransactionState", "Isolation",
    "TransactionAware", "TransactionContext", "AsyncTransactionAware", "AsyncTransactionContext",
    "Publisher", "AsyncPublisher", "Subscriber", "AsyncSubscriber", "Positions", "AsyncPositions",
    "TablePositions", "TransactionalTable", "HBaseTransactionalTable",
    "hook_transaction_id", "PublishEntry", "Outcome", "Health", "HealthCheck",
    "TuffError", "BadRequestError", "TopicNotFoundError", "TopicExistsError",
    "RequestTooLargeError", "OverloadedError", "StorageUnavailableError",
    "TransactionsUnavailableError", "InternalError", "ConnectionLostError", "OutcomeUnknownError",
    "ClientClosedError", "ServerNotTrustedError", "DamagedRecordError", "EmptyPublishError",
    "InvalidTtlError",
    "TransactionError", "TransactionConflictError", "TransactionNotInProgressError",
    "TransactionTimedOutError", "TransactionInvalidatedError", "TransactionCommittedError",
    "TransactionAbortedError", "TransactionUnknownError",
    "Epoch", "Sink", "SinkError", "SinkFencedError", "SinkEpochSupersededError",
    "SinkEpochOpenError", "SinkInUseError", "SinkNotFoundError", "TooManySinksError",
]  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'tuff' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
