"""Reading the rows of an offline command that also writes much to standard error."""

import sys

import pytest

import tuff.server_commands
from tuff.protocol.errors import DamagedRecordError
from tuff.server_commands import inspect

TALKATIVE = """
import sys
for _ in range(20_000):
    print("a line of a log", file=sys.stderr)
print('{"kind": "row"}')
sys.exit(int(sys.argv[1]))
"""


def test_a_full_standard_error_does_not_block_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a pipe for standard error each process waited for the other.
    command = [sys.executable, "-c", TALKATIVE]
    monkeypatch.setattr(tuff.server_commands, "server_command", lambda _: [*command, "0"])
    assert list(inspect("tables", "x")) == [{"kind": "row"}]

    monkeypatch.setattr(tuff.server_commands, "server_command", lambda _: [*command, "1"])
    with pytest.raises(DamagedRecordError, match=r"^x can't be shown: a line of a log$"):
        list(inspect("tables", "x"))
