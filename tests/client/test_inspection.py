"""Reading what the server's code says of files, from a process that may say much of both kinds."""

import sys

import pytest

import tuff.inspection
from tuff.inspection import inspect
from tuff.protocol.errors import DamagedRecordError

TALKATIVE = """
import sys
for _ in range(20_000):
    print("a line of a log", file=sys.stderr)
print('{"kind": "row"}')
sys.exit(int(sys.argv[1]))
"""


def test_what_is_said_on_the_other_pipe_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waited for the other as soon as that pipe was full."""
    command = [sys.executable, "-c", TALKATIVE]
    monkeypatch.setattr(tuff.inspection, "server_command", lambda _: [*command, "0"])
    assert list(inspect("tables", "x")) == [{"kind": "row"}]

    monkeypatch.setattr(tuff.inspection, "server_command", lambda _: [*command, "1"])
    with pytest.raises(DamagedRecordError, match=r"^x can't be shown: a line of a log$"):
        list(inspect("tables", "x"))
