"""Whether a server offers a session, as far as a client knows, and how a client asks for one."""

from http import HTTPStatus

from tuff.address import Address
from tuff.protocol.session_frames import PROTOCOL

REPLY_BYTES_MAX = 1 << 30  # bytes of a reply; a poll has `messaging.poll_bytes_max` and its ids
ASK_AGAIN_S = 60.0  # seconds after a refusal; behind the same address there may be another server
ASK_AGAIN_WHEN_BUSY_S = 1.0  # seconds after an answer that says "not now"

_NOT_NOW = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


class NoSessionError(Exception):
    """The server offers no session now. `status`: of its answer, None if it gave none."""

    def __init__(self, status: int | None, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Offers:
    """When to ask a server for a session. A refusal is remembered for a while, so that few calls
    pay for the question. Times are in seconds, of any clock that only goes forward."""

    def __init__(self) -> None:
        self._not_before_s = 0.0

    def is_worth_asking(self, now_s: float) -> bool:
        """Whether no refusal is remembered."""
        return now_s >= self._not_before_s

    def refused(self, error: NoSessionError, now_s: float) -> float:
        """Remember a refusal; returns for how many seconds."""
        for_s = ASK_AGAIN_WHEN_BUSY_S if error.status in _NOT_NOW else ASK_AGAIN_S
        self._not_before_s = now_s + for_s
        return for_s


def upgrade_fields(address: Address) -> dict[str, str]:
    """The header fields of the request that begins a session, but Host."""
    fields = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
    if address.token is not None:
        fields["Authorization"] = f"Bearer {address.token}"
    return fields
