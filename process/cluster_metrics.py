"""The metrics of a server in a cluster (protocol §7)."""

from collections.abc import Callable

from cluster.operator_routes import JoinedCluster
from cluster.reach import Reach
from cluster.request_counts import RequestCounts
from process.metrics import Gauge


def gauges(
    joined: Callable[[], JoinedCluster | None], counts: RequestCounts, reach: Reach
) -> list[Gauge]:
    """What a scrape reads. Most have no sample until the server has joined its cluster."""
    return [
        *_of_cluster(joined),
        *_of_reach(reach),
        *_of_topics(joined),
        *_of_requests(counts),
    ]


def _once_joined(
    joined: Callable[[], JoinedCluster | None], read: Callable[[JoinedCluster], float | None]
) -> Callable[[], float | None]:
    def read_now() -> float | None:
        found = joined()
        return None if found is None else read(found)

    return read_now


def _of_cluster(joined: Callable[[], JoinedCluster | None]) -> list[Gauge]:
    return [
        Gauge(
            "cluster_members",
            "Live servers of the cluster, as far as this one knows.",
            _once_joined(joined, lambda found: len(found.ownership.members)),
        ),
        Gauge(
            "cluster_leading",
            "1 while this server leads transactions.",
            _once_joined(joined, lambda found: float(found.election.is_mine)),
        ),
        Gauge(
            "cluster_suspended",
            "1 while this server can't prove that it is still a member, and answers nothing.",
            _once_joined(
                joined, lambda found: float(not found.membership.metadata_session.is_live)
            ),
        ),
        Gauge(
            "cluster_leader_epoch",
            "The epoch of the leader of transactions; no sample while none is known.",
            _once_joined(joined, _leader_epoch),
        ),
        Gauge(
            "cluster_fences",
            "Ended servers that this one has fenced.",
            _once_joined(joined, lambda found: found.membership.fenced_count),
            is_counter=True,
        ),
    ]


def _of_reach(reach: Reach) -> list[Gauge]:
    return [
        Gauge(
            "cluster_reaches_hbase",
            "1 while the checks of this server reach HBase.",
            lambda: float(reach.hbase),
        ),
        Gauge(
            "cluster_reaches_directory",
            "1 while this server can read the transaction files of its cluster.",
            lambda: float(reach.directory),
        ),
    ]


def _of_topics(joined: Callable[[], JoinedCluster | None]) -> list[Gauge]:
    return [
        Gauge(
            "cluster_topics",
            "Topics that this server owns, deleted ones included.",
            _once_joined(joined, lambda found: found.ownership.topics_count),
        ),
        Gauge(
            "cluster_draining",
            "1 while this server gives its topics away and takes none.",
            _once_joined(joined, lambda found: float(found.ownership.is_draining)),
        ),
        Gauge(
            "cluster_claims",
            "Topics that this server has claimed.",
            _once_joined(joined, lambda found: found.ownership.claimed_count),
            is_counter=True,
        ),
        Gauge(
            "cluster_releases",
            "Topics that this server has given away.",
            _once_joined(joined, lambda found: found.ownership.released_count),
            is_counter=True,
        ),
    ]


def _leader_epoch(joined: JoinedCluster) -> float | None:
    leader = joined.election.found
    return None if leader is None else leader.version


def _of_requests(counts: RequestCounts) -> list[Gauge]:
    return [
        Gauge(
            "cluster_requests_forwarded",
            "Requests that another server has answered for this one.",
            lambda: counts.forwarded,
            is_counter=True,
        ),
        Gauge(
            "cluster_requests_redirected",
            "Requests that were answered with the address of another server.",
            lambda: counts.redirected,
            is_counter=True,
        ),
        Gauge(
            "cluster_requests_refused",
            "Requests that were refused because an ownership is moving.",
            lambda: counts.refused,
            is_counter=True,
        ),
    ]
