"""What the access guard keeps in memory."""

import weakref
from pathlib import Path

from kernel.requests_and_replies import Request
from process.access_guard import AccessGuard
from tests.secret_values import hash_of_token, token_of
from tuff.protocol.operations import POLL

FILE = f"""
[principals.a]
tokens = ["{hash_of_token("a")}"]
[[principals.a.rights]]
allow = ["read"]
"""


class Name(str):
    """A text that tells when it is freed."""

    __slots__ = ("__weakref__",)


def test_a_name_that_is_too_long_for_a_topic_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    guard = AccessGuard(file, now_s=lambda: 0.0)
    name = Name("t" * 1_000)
    parameters = {"ns": "default", "t": name}
    kept = weakref.ref(name)

    guard.require_head(
        POLL,
        Request(parameters, (), None, None, b"", authorization=f"Bearer {token_of('a')}"),
    )
    del name, parameters

    assert kept() is None
