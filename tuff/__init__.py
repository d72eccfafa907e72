"""Tuff: publish a message if, and only if, your own change commits.

`tuff` has what most programs use, and the errors that most programs catch. `tuff.errors` has all
errors, `tuff.admin` the replies for operators, and `tuff.connectors` what a connector needs.

The imports below are the only list of the names of `tuff`. Type checkers read them as they are. At
run time a name is loaded when it is first used, so that importing `tuff` costs a program little.
"""

# Type checkers take a constant of this name for True. To import that of `typing` costs more than
# all the rest here.
TYPE_CHECKING = False

if not TYPE_CHECKING:
    # Hidden from type checkers, which would take every name for one that is there.
    import sys
    from importlib import import_module

    def _modules_by_name(compiled: tuple[str, ...]) -> dict[str, str]:
        """Where each public name is defined, by the names of this module's code, in their order.

        The imports below are compiled, and never run: `from tuff.a import B as B` left "tuff.a" and
        "B" there. So no source is needed, and programs that collect the modules of another find
        them as they find all imports.
        """
        found, module = {}, ""
        for name in compiled:
            if name == "tuff" or name.startswith("tuff."):
                module = name
            elif module:
                found[name] = module
        return found

    _modules = _modules_by_name(sys._getframe().f_code.co_names)  # noqa: SLF001 - of CPython
    __all__ = list(_modules)

    def __getattr__(name: str) -> object:
        if name not in _modules:
            raise AttributeError(f"module 'tuff' has no attribute {name!r}")
        module = _modules[name]
        value: object
        if module == "tuff":  # one of the modules that have names of their own
            value = import_module(f"tuff.{name}")
        else:
            value = getattr(import_module(module), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
else:
    from tuff import admin as admin
    from tuff import connectors as connectors
    from tuff import errors as errors
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
    from tuff.consumer_options import Batch as Batch
    from tuff.consumer_options import DeliveryMode as DeliveryMode
    from tuff.dead_letters import DeadLetter as DeadLetter
    from tuff.dead_letters import read_dead_letter as read_dead_letter
    from tuff.errors import ConnectionLostError as ConnectionLostError
    from tuff.errors import OutcomeUnknownError as OutcomeUnknownError
    from tuff.errors import TopicExistsError as TopicExistsError
    from tuff.errors import TopicNotFoundError as TopicNotFoundError
    from tuff.errors import TransactionConflictError as TransactionConflictError
    from tuff.errors import TuffError as TuffError
    from tuff.errors import WrongStateError as WrongStateError
    from tuff.exactly_once_subscriber import TablePositions as TablePositions
    from tuff.participant import AsyncTransactionAware as AsyncTransactionAware
    from tuff.participant import TransactionAware as TransactionAware
    from tuff.protocol.group_preferences import GroupPreferences as GroupPreferences
    from tuff.protocol.group_preferences import RetryPolicy as RetryPolicy
    from tuff.protocol.ids import MessageId as MessageId
    from tuff.protocol.ids import PartitionId as PartitionId
    from tuff.protocol.ids import TopicId as TopicId
    from tuff.protocol.requests import Ack as Ack
    from tuff.protocol.requests import Isolation as Isolation
    from tuff.protocol.requests import Message as Message
    from tuff.protocol.transaction import Transaction as Transaction
    from tuff.protocol.transaction import TransactionType as TransactionType
    from tuff.publish_calls import NewMessage as NewMessage
    from tuff.replies import Poll as Poll
    from tuff.replies import Published as Published
    from tuff.serializers import BYTES as BYTES
    from tuff.serializers import STR as STR
    from tuff.serializers import Serializer as Serializer
    from tuff.serializers import TypedMessage as TypedMessage
    from tuff.serializers import avro_serializer as avro_serializer
    from tuff.serializers import json_serializer as json_serializer
    from tuff.tables.hbase_table import HBaseTransactionalTable as HBaseTransactionalTable
    from tuff.tables.leveldb_table import TransactionalTable as TransactionalTable
    from tuff.version import __version__ as __version__
