"""`--url`, `--token` and a certificate authority of one's own, for each command with a server."""

import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest
import trustme

from pipeline.command import run as run_pipeline
from tests.cli.command import tuff_command
from tuff.sql.dialects import SQLITE, identity_of
from tuff_cli.program import program

ID = "0" * 40
COMMANDS = [
    ("status",),
    ("doctor",),
    ("top", "--once", "--interval", "0.1"),
    ("explain", "t", ID),
    ("topics", "ls"),
    ("topics", "show", "t"),
    ("topics", "create", "t"),
    ("topics", "set", "t", "--ttl", "5"),
    ("topics", "rm", "t", "--yes"),
    ("topics", "truncate", "t", "--before", ID, "--yes"),
    ("disk", "show"),
    ("disk", "reclaim"),
    ("tx", "invalid"),
    ("tx", "truncate", "1", "--yes"),
    ("pub", "t", "m"),
    ("tail", "t"),
    ("tx", "ls"),
    ("tx", "show", "1"),
    ("tx", "blockers", "t"),
    ("tx", "start"),
    ("tx", "renew", "1"),
    ("tx", "commit", "1"),
    ("tx", "abort", "1"),
    ("tx", "invalidate", "1"),
    ("tx", "prepared"),
    ("tx", "resolve", "1", "abort"),
    ("sql", "resolve", "SQLITE", "--database", "shop", "--once"),
    ("sinks", "ls"),
    ("sinks", "show", "s"),
    ("sinks", "rm", "s", "--yes"),
    ("holds", "ls", "t"),
    ("holds", "set", "t", "n"),
    ("holds", "rm", "t", "n"),
    ("positions", "ls", "t"),
    ("positions", "set", "t", "n", ID),
    ("positions", "rm", "t", "n"),
    ("delayed", "ls", "t"),
    ("delayed", "cancel", "t", "00"),
    ("dlq", "ls", "t"),
    ("dlq", "replay", "t"),
    ("groups", "ls"),
    ("groups", "show", "g"),
    ("groups", "preferences", "g"),
    ("groups", "set", "g", "--tags", "a"),
    ("groups", "reset", "g", "t:0", "--to", ID, "--yes"),
    ("groups", "delete", "g", "--yes"),
    ("share", "ls", "t"),
    ("share", "show", "t", "g"),
    ("share", "create", "t", "g"),
    ("share", "delete", "t", "g", "--yes"),
    ("snapshot", "take"),
    ("cluster", "status"),
    ("cluster", "topics"),
    ("cluster", "move", "t", "--to", "s2"),
    ("cluster", "drain", "s1"),
    ("cluster", "undrain", "s1"),
    ("backup", "FILE"),
]


class Refusing(HTTPServer):
    """A server with TLS that refuses each request, and records its token."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__(("127.0.0.1", 0), Refusal)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.tokens: list[str | None] = []


class Refusal(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Refusing)
        self.server.tokens.append(self.headers["Authorization"])
        body = b'{"status":403,"code":"forbidden","detail":"this user may not do that"}'
        self.send_response(403)
        self.send_header("Content-Type", "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server asks for these names

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def refusing(authority: trustme.CA) -> Iterator[Refusing]:
    with Refusing(authority) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, *names, name)
    elif any("--url" in parameter.opts for parameter in command.params):
        yield names


def test_every_command_with_a_server_is_listed_here() -> None:
    listed = [
        words[: 2 if isinstance(program.commands[words[0]], click.Group) else 1]
        for words in COMMANDS
    ]

    assert sorted(listed) == sorted(commands(program))


def sqlite_url(path: Path) -> str:
    """A database that a program has used under the name shop."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(SQLITE.create_table)
        connection.execute(SQLITE.insert_of_question(identity_of("shop", 1)))
        connection.commit()
    return f"sqlite:///{path}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_sends_the_token_to_a_server_with_a_private_authority(
    refusing: Refusing,
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    certificates = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(certificates))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates))
    monkeypatch.setenv("TUFF_TOKEN", "of the environment")
    url = f"https://127.0.0.1:{refusing.server_port}"
    files = {"FILE": str(tmp_path / "FILE"), "SQLITE": sqlite_url(tmp_path / "shop.sqlite")}
    typed = [files.get(word, word) for word in words]
    refusing.tokens.clear()

    behind = tuff_command(*typed, "--token", "secret", "--url", url)
    before = tuff_command("--token", "secret", *typed, url=url)

    for done in (behind, before):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("tuff: this user may not do that")
    assert set(refusing.tokens) == {"Bearer secret"}


def test_a_pipeline_sends_the_token_of_its_file(
    refusing: Refusing,
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    certificates, token = tmp_path / "authority.pem", tmp_path / "token"
    authority.cert_pem.write_to_path(str(certificates))
    token.write_text("of the file\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates))
    url = f"https://127.0.0.1:{refusing.server_port}"
    refusing.tokens.clear()

    code = run_pipeline(["--url", url, "--token-file", str(token), "lag", "--topic", "t"])

    assert (code, capsys.readouterr().err) == (1, "tuff-pipeline: this user may not do that\n")
    assert set(refusing.tokens) == {"Bearer of the file"}
