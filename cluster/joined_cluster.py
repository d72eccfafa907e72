"""This server's part in its cluster, which it has once it has joined."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.draining import Drain
from cluster.leader_election import Election
from cluster.membership import Membership
from cluster.topic_claims import TopicClaims
from kernel.owner_floor import Identity
from metadata.topic_owner_records import OwnerRecords
from metadata.topic_records import TopicRecords


@dataclass(frozen=True, slots=True)
class JoinedCluster:
    """What a server has once it has joined its cluster."""

    identity: Identity
    membership: Membership
    ownership: TopicClaims
    owners: OwnerRecords
    persistence: TopicRecords
    election: Election
    drain: Drain


Joined = Callable[[], JoinedCluster]  # raises StartingError before the server has joined
