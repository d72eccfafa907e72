"""`tuff doctor` against a real server, and without one."""

import datetime
import json
import socket
import ssl
from pathlib import Path
from threading import Thread

import trustme

from tests.cli.command import tuff_command
from tests.cli.conftest import Tuff
from tests.http.process import ServerProcess
from tuff.tls import TlsFiles
from tuff_cli.doctor import certificate_finding, clock_findings
from tuff_cli.metrics import quantile, samples_in


def test_a_server_and_its_machine_are_checked(run: Tuff, server: ServerProcess) -> None:
    done = run("doctor", "--data", str(server.data), "--json")

    said = json.loads(done.stdout)
    levels = {each["check"]: each["level"] for each in said["findings"]}
    assert levels["version"] == levels["health storage"] == levels["clock offset"] == "ok"
    assert levels[f"permissions {server.data / 'messages'}"] == "ok"
    assert done.returncode == (1 if said["counts"]["problem"] else 0)
    assert all(each["advice"] for each in said["findings"] if each["level"] != "ok")


def test_a_token_file_that_every_user_may_read_is_named(run: Tuff, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-token-of-nobody")
    shown = []
    for mode in (0o600, 0o604):
        file.chmod(mode)
        done = run("doctor", "--token-file", str(file))
        shown.append("every user of this machine may read it" in done.stdout)
        assert "secret-token" not in done.stdout

    assert shown == [False, True]


def test_without_a_server_the_machine_is_checked_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    alone = tuff_command("doctor", url=url)
    config = tmp_path / "wrong.toml"
    config.write_text("[server]\nprot = 1\n")
    local = tuff_command("doctor", "--config", str(config), "--data", str(tmp_path), url=url)

    assert alone.returncode == 3
    assert local.returncode == 1
    assert "there is no setting server.prot" in local.stdout
    assert "start it, unless it is stopped" in local.stdout
    assert "server.prot" in tuff_command("doctor", "--set", "server.prot=1", url=url).stdout


def test_a_clock_that_differs_or_was_set_back_is_told() -> None:
    def levels(text: str) -> list[str]:
        return [each.level for each in clock_findings(samples_in(text), 1_000.0)]

    assert levels("tuff_time_seconds 1000.2\ntuff_clock_regressions_total 0\n") == ["ok", "ok"]
    assert levels("tuff_time_seconds 1010\ntuff_clock_regressions_total 2\n") == ["warning"] * 2
    assert levels("tuff_time_seconds 10\n") == ["problem"]


def test_a_certificate_that_ends_soon_or_is_not_trusted_is_told(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=5)
    certificate = authority.issue_cert("localhost", not_after=ends)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)

    def handshake(listening: socket.socket) -> None:
        for _ in range(3):
            plain, _ = listening.accept()
            try:
                context.wrap_socket(plain, server_side=True).close()
            except OSError:
                plain.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=handshake, args=(listening,))
        thread.start()
        url = f"https://localhost:{listening.getsockname()[1]}"
        unknown = certificate_finding(url, TlsFiles(), now_s=0.0)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        files = TlsFiles(ca_file=tmp_path / "ca.pem")
        early = certificate_finding(url, files, now_s=ends.timestamp() - 30 * 86_400)
        late = certificate_finding(url, files, now_s=ends.timestamp() - 5 * 86_400)
        thread.join()

    assert [each.level for each in (unknown, early, late)] == ["problem", "ok", "warning"]
    assert late.detail == f"it expires on {ends.date()}"


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    samples = samples_in('x_bucket{le="1"} 5\nx_bucket{le="2"} 9\nx_bucket{le="+Inf"} 10\n')

    assert [quantile(samples, "x", share) for share in (0.5, 0.9, 0.99)] == [1, 2, float("inf")]
    assert quantile(samples, "y", 0.5) is None
