"""The names of servers in a cluster."""

import re

SERVER_ID_LENGTH_MAX = 64  # characters

_SERVER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_server_id(server_id: str) -> str:
    """Returns the id if it is legal. Raises: ValueError."""
    if _SERVER_ID.fullmatch(server_id) is None:
        raise ValueError(
            f"the server id {server_id[:80]!r} is not legal: use 1 to {SERVER_ID_LENGTH_MAX} "
            "characters of A-Z a-z 0-9 . _ -, beginning with a letter or digit"
        )
    return server_id
