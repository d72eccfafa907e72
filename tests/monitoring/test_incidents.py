"""Incidents on a real server: what the command says is what docs/operations.md shows.

The page's own programs run in tests/test_docs.py. A full disk, a disk that hangs and a clock that
jumps are in tests/faults and tests/http.
"""

import re
from pathlib import Path

from tests.cli.command import tuff_command
from tests.http.client import until
from tests.http.conftest import NewServer
from tests.http.conftest import new_server as new_server
from tests.http.process import ServerProcess

PAGE = (Path(__file__).resolve().parents[2] / "docs/operations.md").read_text("utf-8")


def said(*arguments: str, server: ServerProcess | None = None) -> str:
    """What the command prints, as one line."""
    done = tuff_command(*arguments, url="http://127.0.0.1:9" if server is None else server.url)
    return " ".join((done.stdout + done.stderr).split())


def shown(sentence: str, output: str) -> None:
    """The page has this sentence, and so has the output."""
    assert sentence in PAGE
    assert sentence in output


def metric(server: ServerProcess, name: str) -> float:
    text = server.client().get("/metrics").body.decode()
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(value)


def test_a_message_store_that_is_missing_is_put_back(new_server: NewServer) -> None:
    first = new_server()
    said("topics", "create", "orders", server=first)
    first.terminate()
    (first.data / "messages").rename(first.home / "away")

    running = new_server(home=first.home)
    down, up = said("pub", "orders", "a", server=running), metric(running, "tuff_store_up")
    (first.home / "away").rename(running.data / "messages")
    until(lambda: metric(running, "tuff_store_up") == 1, what="the store to come back")

    shown("holds no message store, and the transaction files in", down)
    shown("put it back (is its volume mounted?), and the server continues", down)
    assert up == 0
    assert "published 1 message" in said("pub", "orders", "a", server=running)


def test_a_damaged_file_is_found_and_salvaged(new_server: NewServer, tmp_path: Path) -> None:
    first = new_server()
    said("topics", "create", "orders", server=first)
    for number in range(30):
        said("pub", "orders", *(f"message {number}.{each}" for each in range(10)), server=first)
    first.terminate()
    (log,) = (first.data / "messages").glob("*.log")
    data = bytearray(log.read_bytes())
    data[2_000] ^= 0xFF
    log.write_bytes(data)

    running = new_server(home=first.home)
    status = said("status", server=running)
    running.terminate()
    new = str(tmp_path / "new")
    found = said("fsck", str(first.data))
    salvaged = said("salvage", str(first.data), new)

    shown("messages can't be stored or read: LevelDB can't open", status)
    shown("Corruption: checksum mismatch", status)
    shown(
        "write everything readable to a new directory with `tuff salvage`, or restore a backup",
        found,
    )
    assert "lost 1" in salvaged
    shown("damages 0", said("fsck", new))


def test_a_gateway_of_hbase_that_is_away_is_named(new_server: NewServer) -> None:
    running = new_server(
        "messaging.store=hbase",
        "server.max_request_bytes=8388608",
        'hbase.gateways=["127.0.0.1:1"]',
    )

    output = said("pub", "orders", "a", server=running)

    shown("no HBase gateway answers at 127.0.0.1:1; start it, or correct its address", output)
