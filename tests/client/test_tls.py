"""A server behind a proxy that speaks TLS, with a certificate of an authority of one's own."""

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import tuff
from tests.client.proxy import losing
from tests.http.process import ServerProcess

PAYLOAD = "x" * 100_000  # more than one record of TLS, so that some waits decrypted

BLOCKING = """
import sys, tuff
from tuff import TablePositions
url, table, payload = sys.argv[1:]
topic = tuff.TopicId("tls", "blocking")
with tuff.Client(url, retries=5) as client, tuff.TransactionalTable(table) as rows:
    client.topics.create(topic)
    client.publish(topic, *[payload] * 3)
    def process(messages, tx):
        print([m.payload.decode() == payload for m in messages])
    client.subscriber(topic, process, positions=TablePositions(rows, "tls"), wait=5).step()
"""

ON_A_LOOP = """
import asyncio, sys, tuff
url, _, payload = sys.argv[1:]
topic = tuff.TopicId("tls", "asyncio")
async def main():
    async with tuff.AsyncClient(url) as client:
        await client.topics.create(topic)
        await client.publish(topic, *[payload] * 3)
        print([m.payload.decode() == payload for m in await client.poll(topic)])
asyncio.run(main())
"""

BOTH = pytest.mark.parametrize(
    "program",
    [
        pytest.param(BLOCKING, id="blocking"),
        pytest.param(ON_A_LOOP, id="asyncio", marks=pytest.mark.slow),
    ],
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def url(server: ServerProcess, authority: trustme.CA) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with losing(server.url, context=context) as (address, _):
        yield address


def run(program: str, url: str, home: Path, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, url, str(home / "table"), PAYLOAD],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@BOTH
def test_the_environment_names_the_file_of_a_private_authority(
    url: str, authority: trustme.CA, tmp_path: Path, program: str
) -> None:
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)

    assert run(program, url, tmp_path, SSL_CERT_FILE=str(path)) == (0, "[True, True, True]\n", "")


@pytest.mark.slow
@BOTH
def test_an_untrusted_server_receives_no_request(url: str, tmp_path: Path, program: str) -> None:
    code, out, err = run(program, url, tmp_path)

    assert (code, out) == (1, "")
    assert "ServerNotTrustedError: https://127.0.0.1" in err.splitlines()[-1]
    assert "SSL_CERT_FILE" in err.splitlines()[-1]


def test_an_untrusted_server_is_not_asked_again(url: str) -> None:
    with tuff.Client(url, retries=100) as client, pytest.raises(tuff.errors.ServerNotTrustedError):
        client.topics.namespaces()


def test_the_authorities_of_the_machine_are_read_once_for_a_client(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection read them all: some hundred certificates."""
    read_count = 0
    load = ssl.SSLContext.load_default_certs

    def counting(context: ssl.SSLContext, *arguments: ssl.Purpose) -> None:
        nonlocal read_count
        read_count += 1
        load(context, *arguments)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", counting)
    with tuff.Client(url, retries=0) as client:
        for _ in range(3):  # a connection each, as none of them gets as far as to be kept
            with pytest.raises(tuff.errors.ServerNotTrustedError):
                client.topics.namespaces()

    assert read_count == 1


async def test_the_authorities_are_read_once_for_an_asyncio_client(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ssl.SSLContext] = []
    client = tuff.AsyncClient(url, retries=0)  # it loads aiohttp, which reads them once as well
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda one, *_: read.append(one))
    async with client:
        for _ in range(3):
            with pytest.raises(tuff.errors.ServerNotTrustedError):
                await client.topics.namespaces()

    assert len(read) <= 1


async def test_a_server_without_tls_is_named(server: ServerProcess) -> None:
    wrong = server.url.replace("http:", "https:")

    with tuff.Client(wrong, retries=0) as client, pytest.raises(tuff.TuffError) as blocking:
        client.topics.namespaces()
    assert "does not speak TLS" in str(blocking.value)
    for transport in ("http", "auto"):
        async with tuff.AsyncClient(wrong, retries=0, transport=transport) as on_a_loop:
            with pytest.raises(tuff.errors.ServerNotTrustedError, match="does not speak TLS"):
                await on_a_loop.transactions.start()


def test_files_that_can_not_be_used_are_named_by_their_setting(tmp_path: Path) -> None:
    names = ("a.crt", "a.key", "b.key", "text")
    certificate, key, other_key, text = (tmp_path / name for name in names)
    authority = trustme.CA()
    issued = authority.issue_cert("a.example")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.issue_cert("b.example").private_key_pem.write_to_path(other_key)
    text.write_text("no PEM")

    for given, own_key, reason in (
        (certificate, other_key, f"tls_key_file {other_key} is not that of the first certificate"),
        (text, key, f"tls_certificate_file {text} has no certificate in PEM"),
        (certificate, text, f"tls_key_file {text} has no private key in PEM"),
        (certificate, None, f"tls_certificate_file {certificate} has no private key in PEM"),
        (
            certificate,
            tmp_path / "none",
            f"tls_key_file {tmp_path / 'none'} can't be read: No such",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)):
            tuff.Client(tls_certificate_file=given, tls_key_file=own_key)
