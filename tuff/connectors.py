"""Arguments and replies of the calls from which connectors are built, such as that of Spark.

They are about reads as Arrow batches, splits, epochs of sinks, stored messages, and positions in
another store.
"""

from tuff.participant import AsyncPositions as AsyncPositions
from tuff.participant import Positions as Positions
from tuff.protocol.attributes import Attributes as Attributes
from tuff.protocol.requests import PublishEntry as PublishEntry
from tuff.protocol.requests import RollbackDetail as RollbackDetail
from tuff.protocol.transaction import VisibilityLevel as VisibilityLevel
from tuff.publish_calls import publish_entry as publish_entry
from tuff.read_calls import PollBatch as PollBatch
from tuff.read_calls import PollQuestion as PollQuestion
from tuff.replies import Epoch as Epoch
from tuff.replies import Prepared as Prepared
from tuff.replies import Split as Split
from tuff.replies import Splits as Splits
