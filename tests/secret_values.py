"""The secrets of all tests. The output of a server, and what a test logs, never shows one."""

from access.principals import hash_of

_TOKEN = "token-of-"
CLUSTER_SECRET = "secret-of-cluster-0123456789abcdef"
_PARTS = {_TOKEN, CLUSTER_SECRET, hash_of(CLUSTER_SECRET), "PRIVATE KEY-----"}


def token_of(name: str) -> str:
    """The token of a principal of a test; the same each time."""
    token = _TOKEN + name
    _PARTS.add(hash_of(token))
    return token


def hash_of_token(name: str) -> str:
    """The entry of an access file for `token_of(name)`."""
    return f"sha256:{hash_of(token_of(name))}"


def require_no_secret(text: str, *, source: str) -> None:
    """Fail where the text has a token of a test, its hash, the secret of a cluster or a key."""
    for secret in _PARTS:
        assert secret not in text, f"{source} shows a secret: {_line_with(secret, text)}"


def _line_with(secret: str, text: str) -> str:
    return next(line for line in text.splitlines() if secret in line)
