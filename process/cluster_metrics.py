"""The metrics of a server in a cluster (protocol §7)."""

from collections.abc import Callable, Iterator

from cluster.joined_cluster import JoinedCluster
from cluster.reach import Reach
from cluster.request_counts import RequestCounts
from process.metrics import Metric, counter, gauge


def of_cluster(
    joined: JoinedCluster | None, counts: RequestCounts, reach: Reach
) -> Iterator[Metric]:
    """What a scrape shows. Most have no sample until the server has `joined` its cluster."""
    yield from _of_membership(joined)
    yield gauge(
        "cluster_reaches_hbase",
        "1 while the checks of this server reach HBase.",
        float(reach.hbase),
    )
    yield gauge(
        "cluster_reaches_directory",
        "1 while this server can read the transaction files of its cluster.",
        float(reach.directory),
    )
    yield from _of_topics(joined)
    yield counter(
        "cluster_requests_forwarded",
        "Requests that another server has answered for this one.",
        counts.forwarded,
    )
    yield counter(
        "cluster_requests_redirected",
        "Requests that were answered with the address of another server.",
        counts.redirected,
    )
    yield counter(
        "cluster_requests_refused",
        "Requests that were refused because an ownership is moving.",
        counts.refused,
    )


def _of_membership(joined: JoinedCluster | None) -> Iterator[Metric]:
    def once_joined(read: Callable[[JoinedCluster], float | None]) -> float | None:
        return None if joined is None else read(joined)

    yield gauge(
        "cluster_members",
        "Live servers of the cluster, as far as this one knows.",
        once_joined(lambda found: len(found.ownership.members)),
    )
    yield gauge(
        "cluster_leading",
        "1 while this server leads transactions.",
        once_joined(lambda found: float(found.election.is_mine)),
    )
    yield gauge(
        "cluster_suspended",
        "1 while this server can't prove that it is still a member, and answers nothing.",
        once_joined(lambda found: float(not found.membership.metadata_session.is_live)),
    )
    leader = None if joined is None else joined.election.found
    yield gauge(
        "cluster_leader_epoch",
        "The epoch of the leader of transactions; no sample while none is known.",
        None if leader is None else leader.version,
    )
    yield counter(
        "cluster_fences",
        "Ended servers that this one has fenced.",
        once_joined(lambda found: found.membership.fenced_count),
    )


def _of_topics(joined: JoinedCluster | None) -> Iterator[Metric]:
    owned = None if joined is None else joined.ownership
    yield gauge(
        "cluster_topics",
        "Topics that this server owns, deleted ones included.",
        None if owned is None else owned.topics_count,
    )
    yield gauge(
        "cluster_draining",
        "1 while this server gives its topics away and takes none.",
        None if owned is None else float(owned.is_draining),
    )
    yield counter(
        "cluster_claims",
        "Topics that this server has claimed.",
        None if owned is None else owned.claimed_count,
    )
    yield counter(
        "cluster_releases",
        "Topics that this server has given away.",
        None if owned is None else owned.released_count,
    )
