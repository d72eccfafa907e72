"""Which server shall own a topic, and how many topics a server gives away (decision 0042).

Both are pure: the caller reads the members, writes the records, and moves the topics.
"""

from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b

from metadata.member_records import ServerInfo


def least_loaded(members: Mapping[str, ServerInfo], chance: Callable[[int], int]) -> str | None:
    """The id of a server with the fewest topics, among those that can take some; None if there is
    none. Among several it is chosen uniformly: `chance(n)` is a number below n, each with the same
    probability."""
    staying = [each for each in members.values() if not each.is_draining]
    ready = [each for each in staying if each.reaches_hbase] or staying
    if not ready:
        return None
    fewest = min(each.topics for each in ready)
    lightest = sorted(each.server_id for each in ready if each.topics == fewest)
    return lightest[chance(len(lightest))]


def preferred(topic: str, members: Mapping[str, ServerInfo]) -> str | None:
    """The id of the server that takes over a topic whose owner ended, among those that don't drain;
    None if there is none. All servers agree without asking each other, and the topics of a server
    that ends are spread over all others (rendezvous hashing).

    Whether a server reaches HBase must not matter here. It changes with no event after which the
    others look for topics without an owner, and some would stay so. A server that alone can't reach
    HBase ends soon."""
    ready = [each.server_id for each in members.values() if not each.is_draining]
    return max(ready, key=lambda server_id: _weight(topic, server_id), default=None)


def topics_to_release(
    mine: int, loads: Collection[int], *, tolerance_percent: int, shed_max: int
) -> int:
    """How many topics a server with `mine` topics releases now. `loads` are the topic counts of all
    servers that take topics, including this one.

    A server releases topics only if it has more than the mean plus the tolerance, rounded up. It
    then goes down to the mean, rounded up, by at most `shed_max` topics at a time, and keeps at
    least one. So a server whose load is at most the mean, rounded up, never releases any, and a
    topic that moved to the least loaded server stays there.

    Raises:
        ValueError: `loads` is empty, or a number is negative.
    """
    if not loads or min(mine, tolerance_percent, shed_max, *loads) < 0:
        raise ValueError(
            f"no topics can be released with {mine} of the loads {list(loads)}, "
            f"{tolerance_percent} % and at most {shed_max} at a time"
        )
    total, count = sum(loads), len(loads)
    permissible = max(1, _quotient_up(total * (100 + tolerance_percent), 100 * count))
    if mine <= permissible:
        return 0
    target = max(1, _quotient_up(total, count), mine - shed_max)
    return mine - target


def _quotient_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _weight(topic: str, server_id: str) -> bytes:
    return blake2b(f"{server_id}/{topic}".encode(), digest_size=8).digest()
