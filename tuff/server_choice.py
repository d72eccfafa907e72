"""Which server of a cluster gets a call, for a client that knows the addresses of several.

Every server takes every request, and forwards it if another one owns the topic or leads the
transactions (protocol §1, Clusters). A forwarded reply names that server, so that the client can
send later calls about the same subject there directly.
"""

from collections.abc import Sequence

from tuff.errors import ConnectionLostError
from tuff.flows_and_repeated_calls import is_passing
from tuff.protocol.errors import (
    OwnershipMovingError,
    ShuttingDownError,
    StartingError,
    TuffError,
)
from tuff.protocol.operations import Server
from tuff.requests_and_responses import Request

OWNER_COUNT_MAX = 10_000  # subjects; with their names about 2 MB

OWNER_HEADER = "tuff-owner"
TRANSACTIONS = "transactions"  # all calls about transactions and sinks go to their leader


def subject_of(request: Request) -> str | None:
    """What has one owner in a cluster: a topic, a consumer group, or `TRANSACTIONS`. None: every
    server answers the call by itself."""
    match request.operation.answered_by:
        case Server.TOPIC_OWNER:
            kind = request.operation.parameters[1]
            return ":".join((kind, *request.parameters[:2]))
        case Server.LEADER:
            return TRANSACTIONS
        case Server.ANY:
            return None


class Servers:
    """The server in use, and the owners that are known; a server is an index into the addresses.

    Safe to share between threads without a lock: every step is one operation on an int or a dict,
    and an owner that is missing or wrong only costs that a server forwards the request.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._by_url = {_normal(url): server for server, url in enumerate(urls)}
        self._count = len(urls)
        self._owners: dict[str, int] = {}
        self.current = 0

    def in_order(self, subject: str | None) -> list[int]:
        """The servers to try, each once: the owner if it is known, the one in use, the rest."""
        current = self.current
        others = [(current + step) % self._count for step in range(self._count)]
        owner = None if subject is None else self._owners.get(subject)
        return others if owner is None else list(dict.fromkeys([owner, *others]))

    def answered(self, subject: str | None, owner_url: str | None) -> None:
        """Remember the owner of a subject that a forwarded reply names, if it is one of the
        addresses. No other address gets a request, since requests have the token."""
        if subject is None or owner_url is None:
            return
        owner = self._by_url.get(_normal(owner_url))
        if owner is None:
            self._owners.pop(subject, None)
            return
        if len(self._owners) >= OWNER_COUNT_MAX and subject not in self._owners:
            self._owners.clear()  # those in use are learned again, with one forwarded call each
        self._owners[subject] = owner

    def failed(self, server: int, subject: str | None, error: TuffError) -> None:
        """Leave a server that does not answer, and forget an owner that moves."""
        if isinstance(error, OwnershipMovingError) and subject is not None:
            self._owners.pop(subject, None)
        if _is_gone(error):
            self._owners.clear()  # what it owned has another owner soon
            if self.current == server:  # else another call has left it already
                self.current = (server + 1) % self._count


def _is_gone(error: TuffError) -> bool:
    is_absent = isinstance(error, ConnectionLostError | ShuttingDownError | StartingError)
    return is_absent and is_passing(error)


def _normal(url: str) -> str:
    scheme, _, rest = url.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"
