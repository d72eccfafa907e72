"""Replies of the calls for operators, for annotations in programs that operate servers.

They describe topics and their offsets, delayed messages, groups, holds, sinks, transactions and
their outcomes, health and clusters.
"""

from tuff.protocol.transaction import InvalidReason as InvalidReason
from tuff.protocol.transaction import TransactionState as TransactionState
from tuff.protocol.transaction import TransactionStatus as TransactionStatus
from tuff.replies import ClusterLeader as ClusterLeader
from tuff.replies import ClusterServer as ClusterServer
from tuff.replies import ClusterState as ClusterState
from tuff.replies import DelayedMessage as DelayedMessage
from tuff.replies import DiskSpace as DiskSpace
from tuff.replies import DiskUse as DiskUse
from tuff.replies import Drain as Drain
from tuff.replies import ExpiringMessages as ExpiringMessages
from tuff.replies import Explanation as Explanation
from tuff.replies import Group as Group
from tuff.replies import GroupMember as GroupMember
from tuff.replies import GroupPartition as GroupPartition
from tuff.replies import Health as Health
from tuff.replies import HealthCheck as HealthCheck
from tuff.replies import HealthStatus as HealthStatus
from tuff.replies import Hold as Hold
from tuff.replies import Invalids as Invalids
from tuff.replies import MessageCount as MessageCount
from tuff.replies import MessageLostByGroup as MessageLostByGroup
from tuff.replies import NamedPosition as NamedPosition
from tuff.replies import Offsets as Offsets
from tuff.replies import OpenTransaction as OpenTransaction
from tuff.replies import Outcome as Outcome
from tuff.replies import Overview as Overview
from tuff.replies import PreparedTransaction as PreparedTransaction
from tuff.replies import Reclaimed as Reclaimed
from tuff.replies import Renewed as Renewed
from tuff.replies import RowPage as RowPage
from tuff.replies import ShareGroup as ShareGroup
from tuff.replies import Sink as Sink
from tuff.replies import SnapshotFile as SnapshotFile
from tuff.replies import SpaceOfTopic as SpaceOfTopic
from tuff.replies import StoredRow as StoredRow
from tuff.replies import TableSpace as TableSpace
from tuff.replies import TopicInfo as TopicInfo
from tuff.replies import TopicOwner as TopicOwner
from tuff.replies import TopicOwners as TopicOwners
from tuff.replies import TopicSpace as TopicSpace
from tuff.replies import TopicUpdate as TopicUpdate
from tuff.replies import Truncated as Truncated
from tuff.sql.resolver import SqlSettled as SqlSettled
