"""A server that speaks HTTPS, with certificates of an authority that the tests make."""

import http.client
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

import tuff
from tests.http.client import until
from tests.http.forking import fork_server
from tests.http.process import ServerProcess, serve
from tests.http.session_client import END, START, SessionClient
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import Right
from tuff_storage.disk.pem_files import ends_ms

TOPIC = TopicId("tls", "orders")
HOST = "127.0.0.1"
RIGHTS = f"[[principals.billing.rights]]\nallow = {[str(each) for each in Right]}\n"
NO_CERTIFICATE = f'[principals.billing]\ntokens = ["sha256:{"0" * 64}"]\n{RIGHTS}'
BILLING = f'[principals.billing]\ncertificates = ["billing.example"]\n{RIGHTS}'


class Files:
    """The files of a server and its clients, below `home`."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.certificate, self.key = home / "server.pem", home / "server.key"
        self.servers, self.clients = home / "ca.pem", home / "client-ca.pem"
        self.access = home / "access.toml"
        self.home = home
        self.authority, self.client_authority = trustme.CA(), trustme.CA()
        self.authority.cert_pem.write_to_path(self.servers)
        self.client_authority.cert_pem.write_to_path(self.clients)
        self.access.write_text(BILLING)
        self.write(self.authority.issue_cert(HOST))

    def write(self, issued: trustme.LeafCert) -> None:
        """Replace the certificate of the server."""
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.certificate)

    def of_client(self, name: str, authority: trustme.CA | None = None) -> str:
        """A file with a client's certificate for this name, and its key."""
        file = self.home / f"{name}.pem"
        issued = (authority or self.client_authority).issue_cert(name)
        file.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        return str(file)

    def settings(self) -> list[str]:
        return [
            f"server.tls_certificate_file={self.certificate}",
            f"server.tls_key_file={self.key}",
            f"server.tls_client_ca_file={self.clients}",
            f"server.access_file={self.access}",
        ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls") / "files")


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server"), *files.settings()) as running:
        yield running


def test_a_client_certificate_stands_for_its_principal(server: ServerProcess, files: Files) -> None:
    certificate = files.of_client("billing.example")
    with tuff.Client(
        server.url, tls_ca_file=files.servers, tls_certificate_file=certificate, retries=0
    ) as client:
        client.topics.create(TOPIC)
        client.publish(TOPIC, "x" * 100_000)
        assert [len(each.payload) for each in client.poll(TOPIC)] == [100_000]


async def test_an_asyncio_client_sends_its_certificate(server: ServerProcess, files: Files) -> None:
    certificate = files.of_client("billing.example")
    async with tuff.AsyncClient(
        server.url, tls_ca_file=files.servers, tls_certificate_file=certificate, retries=0
    ) as client:
        assert isinstance(await client.topics.namespaces(), list)


def test_a_session_ends_when_its_certificate_is_that_of_no_principal_any_more(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path / "files")
    context = ssl.create_default_context(cafile=files.servers)
    context.load_cert_chain(files.of_client("billing.example"))
    with (
        serve(tmp_path, *files.settings()) as server,
        SessionClient(server.port, context=context) as session,
    ):
        status, _, started = session.call(START, body={})
        files.access.write_text(NO_CERTIFICATE)
        end = session.read()

    assert (status, started["type"]) == (201, "short")
    assert (end[0], end[1]["code"]) == (END, "unauthenticated")


def test_a_certificate_of_no_principal_is_no_access(server: ServerProcess, files: Files) -> None:
    certificate = files.of_client("stranger.example")
    with (
        tuff.Client(
            server.url, tls_ca_file=files.servers, tls_certificate_file=certificate, retries=0
        ) as client,
        pytest.raises(tuff.errors.UnauthenticatedError, match="client certificate are those of no"),
    ):
        client.topics.namespaces()


def test_a_certificate_of_another_authority_is_no_access(
    server: ServerProcess, files: Files
) -> None:
    certificate = files.of_client("billing.example", trustme.CA())
    with (
        tuff.Client(
            server.url, tls_ca_file=files.servers, tls_certificate_file=certificate, retries=0
        ) as client,
        pytest.raises(tuff.ConnectionLostError),
    ):
        client.topics.namespaces()


def test_a_client_that_does_not_trust_the_server_sends_nothing(server: ServerProcess) -> None:
    with (
        tuff.Client(server.url, token="secret", retries=0) as client,
        pytest.raises(tuff.errors.ServerNotTrustedError),
    ):
        client.topics.namespaces()


def test_old_versions_of_tls_and_plain_http_are_refused(
    server: ServerProcess, files: Files
) -> None:
    old = ssl.create_default_context(cafile=files.servers)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((HOST, server.port)) as raw,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(raw, server_hostname=HOST)
    with socket.create_connection((HOST, server.port), timeout=10) as plain:
        plain.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in _all_of(plain)


def _all_of(connection: socket.socket) -> bytes:
    try:
        return b"".join(iter(lambda: connection.recv(1000), b""))
    except ConnectionResetError:
        return b""


def test_the_files_are_read_again_without_a_restart(tmp_path: Path) -> None:
    files, later = Files(tmp_path / "files"), Files(tmp_path / "later")
    with serve(tmp_path / "home", *files.settings()) as server:

        def reaches(ca_file: Path, certificate: str) -> bool:
            try:
                with tuff.Client(
                    server.url, tls_ca_file=ca_file, tls_certificate_file=certificate, retries=0
                ) as client:
                    client.topics.namespaces()
            except tuff.ConnectionLostError:
                return False
            return True

        old, new = files.of_client("billing.example"), later.of_client("billing.example")
        assert (reaches(files.servers, old), reaches(files.servers, new)) == (True, False)
        files.key.write_text("no key")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: "has no private key in PEM" in server.stderr(), what="the error")
        assert reaches(files.servers, old)

        files.write(later.authority.issue_cert(HOST))
        files.clients.write_bytes(later.clients.read_bytes())

        until(lambda: reaches(later.servers, new), what="the new certificate and authority")
        assert not reaches(files.servers, new)
        assert not reaches(later.servers, old)


def shown_by(server: ServerProcess, path: str) -> str:
    """What a server without an access file answers, whatever its certificate is."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(HOST, server.port, context=trusting, timeout=10)
    connection.request("GET", path)
    shown = connection.getresponse().read().decode()
    connection.close()
    return shown


def days_left(server: ServerProcess) -> float:
    name = "tuff_tls_certificate_days "
    lines = shown_by(server, "/metrics").splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_an_expired_certificate_does_not_take_the_place_of_a_valid_one(tmp_path: Path) -> None:
    """It was used, and every client failed, while the check was ok."""
    files = Files(tmp_path / "files")
    now = datetime.now(UTC)
    files.write(files.authority.issue_cert(HOST, not_after=now + timedelta(days=3, hours=1)))
    with serve(tmp_path / "home", *files.settings()[:3]) as server:
        assert 3.0 < days_left(server) < 3.1
        assert 'tuff_protection_ok{check="tls"} 1' in shown_by(server, "/metrics")

        files.write(files.authority.issue_cert(HOST, not_after=now - timedelta(days=2)))
        os.kill(server.pid, signal.SIGHUP)
        said = f"expired on {now - timedelta(days=2):%Y-%m-%d}"
        until(lambda: said in shown_by(server, "/health/ready"), what="the refusal")
        assert 'tuff_protection_ok{check="tls"} 0' in shown_by(server, "/metrics")
        assert days_left(server) > 3.0
        with tuff.Client(
            server.url,
            tls_ca_file=files.servers,
            tls_certificate_file=files.of_client("billing.example"),
        ) as client:
            assert client.topics.namespaces() == []

        files.write(files.authority.issue_cert(HOST))
        until(lambda: "connections use TLS" in shown_by(server, "/health/ready"), what="health")


@pytest.mark.parametrize("expired", ["certificate", "authority"])
def test_a_start_with_an_expired_certificate_is_degraded(tmp_path: Path, expired: str) -> None:
    files = Files(tmp_path / "files")
    ended = datetime.now(UTC) - timedelta(days=2)
    if expired == "certificate":
        files.write(files.authority.issue_cert(HOST, not_after=ended))
    else:
        issued = trustme.CA().issue_cert("x", not_after=ended)
        issued.cert_chain_pems[0].write_to_path(files.clients)
    with serve(tmp_path / "home", *files.settings()[:3]) as server:
        detail = shown_by(server, "/health/ready")

        assert '"tls":{"status":"degraded"' in detail.replace(" ", "")
        assert f"{ended:%Y-%m-%d}, so clients refuse the connection" in detail


def test_files_that_are_not_valid_end_the_start(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    files.key.write_text("no key")
    arguments = [word for each in files.settings() for word in ("--set", each)]
    server = ServerProcess(tmp_path / "home", "--port", "0", *arguments, forks=fork_server())

    assert server.wait_exit() == 2
    assert f"server.tls_key_file {files.key} has no private key in PEM" in server.stderr()


async def test_a_client_without_tls_is_told_the_scheme(server: ServerProcess) -> None:
    url = server.url.replace("https:", "http:")
    with (
        tuff.Client(url, retries=0) as client,
        pytest.raises(tuff.ConnectionLostError, match="begins with https://"),
    ):
        client.topics.namespaces()
    async with tuff.AsyncClient(url, retries=0) as on_a_loop:
        with pytest.raises(tuff.ConnectionLostError, match="begins with https://"):
            await on_a_loop.topics.namespaces()


def test_a_handshake_that_fails_counts_no_longer(files: Files, tmp_path: Path) -> None:
    with serve(tmp_path, *files.settings(), "server.max_connections=2") as server:
        for sent in (b"no handshake", b"") * 4:
            with socket.create_connection((HOST, server.port)) as stranger:
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(5)
                while stranger.recv(100):
                    pass

        context = ssl.create_default_context(cafile=files.servers)
        connection = http.client.HTTPSConnection(HOST, server.port, context=context, timeout=10)
        connection.request("GET", "/health/live")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_handshake_that_does_not_go_on_counts_as_a_connection(
    files: Files, tmp_path: Path
) -> None:
    with serve(tmp_path, *files.settings(), "server.max_connections=2") as server:
        silent = [socket.create_connection((HOST, server.port))]
        context = ssl.create_default_context(cafile=files.servers)

        def refused() -> bool:
            # One more each time: a worker may take it later than another one takes the next.
            silent.append(socket.create_connection((HOST, server.port)))
            connection = http.client.HTTPSConnection(HOST, server.port, context=context, timeout=10)
            connection.request("GET", "/health/live")
            reply = connection.getresponse()
            connection.close()
            return reply.status == 429

        until(refused, what="the refusal of the third connection")
        for each in silent:
            each.close()


@pytest.mark.parametrize("year", [2049, 2050, 2061])
def test_the_end_of_a_certificate_is_read_in_both_forms(tmp_path: Path, year: int) -> None:
    ends = [datetime(year, 5, 4, 3, 2, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)]
    file = tmp_path / "chain.pem"
    issued = [trustme.CA().issue_cert(HOST, not_after=each) for each in ends]
    file.write_bytes(b"text\n".join(each.cert_chain_pems[0].bytes() for each in issued))

    assert ends_ms(file) == [int(each.timestamp()) * 1000 for each in ends]


def test_a_certificate_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "cut.pem"
    whole = ssl.PEM_cert_to_DER_cert(trustme.CA().cert_pem.bytes().decode())
    file.write_text(ssl.DER_cert_to_PEM_cert(whole[:40]))

    with pytest.raises(ValueError, match="cut off"):
        ends_ms(file)
