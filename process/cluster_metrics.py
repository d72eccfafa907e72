"""The metrics of a server in a cluster (protocol §7)."""

from collections.abc import Callable

from cluster.request_counts import RequestCounts
from cluster.routes import Joined
from process.metrics import Gauge


def gauges(joined: Callable[[], Joined | None], counts: RequestCounts) -> list[Gauge]:
    """What a scrape reads. Most have no sample until the server has joined its cluster."""

    def once_joined(read: Callable[[Joined], float | None]) -> Callable[[], float | None]:
        def read_now() -> float | None:
            found = joined()
            return None if found is None else read(found)

        return read_now

    def of_cluster(
        name: str, text: str, read: Callable[[Joined], float | None], *, is_counter: bool = False
    ) -> Gauge:
        return Gauge(f"cluster_{name}", text, once_joined(read), is_counter=is_counter)

    return [
        of_cluster(
            "members",
            "Live servers of the cluster, as far as this one knows.",
            lambda found: len(found.ownership.members),
        ),
        of_cluster(
            "topics",
            "Topics that this server owns, deleted ones included.",
            lambda found: len(found.ownership.topics()),
        ),
        of_cluster(
            "draining",
            "1 while this server gives its topics away and takes none.",
            lambda found: float(found.ownership.is_draining),
        ),
        of_cluster(
            "leading",
            "1 while this server leads transactions.",
            lambda found: float(found.election.is_mine),
        ),
        of_cluster(
            "leader_epoch",
            "The epoch of the leader of transactions; no sample while none is known.",
            _leader_epoch,
        ),
        of_cluster(
            "claims",
            "Topics that this server has claimed.",
            lambda found: found.ownership.claimed_count,
            is_counter=True,
        ),
        of_cluster(
            "releases",
            "Topics that this server has given away.",
            lambda found: found.ownership.released_count,
            is_counter=True,
        ),
        of_cluster(
            "fences",
            "Ended servers that this one has fenced.",
            lambda found: found.membership.fenced_count,
            is_counter=True,
        ),
        *_of_requests(counts),
    ]


def _leader_epoch(joined: Joined) -> float | None:
    leader = joined.election.found
    return None if leader is None else leader.epoch


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
