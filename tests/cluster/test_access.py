"""Servers of a cluster prove themselves to each other, and pass principals on."""

import asyncio
from pathlib import Path

import pytest

from cluster.peers import Peers
from kernel.batch_routes import AwaitedCall
from kernel.requests_and_replies import Caller, Request
from process.access_guard import AccessGuard
from tests.cluster.nodes import Spawned
from tests.cluster.raw_server import answer, raw_server
from tests.made_operations import made
from tests.secret_values import CLUSTER_SECRET as SECRET
from tests.secret_values import hash_of_token, token_of
from tuff.protocol.errors import ForbiddenError, TuffError, UnauthenticatedError

TOPIC = "/v1/namespaces/{ns}/topics/{t}"
FILE = f"""
[principals.reader]
tokens = ["{hash_of_token("reader")}"]
requests_per_second = 1
[[principals.reader.rights]]
allow = ["read"]
"""


def admitted(tmp_path: Path, method: str, path: str, authorization: str) -> Request:
    """What the handler of a forwarded request gets."""
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    guard = AccessGuard(file, now_s=lambda: 0.0, cluster_secret=SECRET)
    request = Request(
        {"ns": "a", "t": "b"}, (), None, None, b"", is_forwarded=True, authorization=authorization
    )
    for _ in range(2):  # what is forwarded was charged by the first server
        guard.admitted(AwaitedCall(None), made(method, path), request)
    return guard.admitted(AwaitedCall(None), made(method, path), request)


async def test_a_forwarded_request_has_the_rights_of_its_principal(tmp_path: Path) -> None:
    proof = f"Tuff-Server {SECRET} reader"

    got = admitted(tmp_path, "GET", f"{TOPIC}/messages", proof)

    assert got.caller == Caller("reader")
    assert got.is_forwarded
    with pytest.raises(ForbiddenError):
        admitted(tmp_path, "DELETE", TOPIC, proof)


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        (f"Tuff-Server {SECRET[:-1]}0 reader", UnauthenticatedError),
        (f"Tuff-Server {SECRET} stranger", UnauthenticatedError),
        ("Tuff-Server  reader", UnauthenticatedError),
        (f"Bearer {SECRET}", UnauthenticatedError),
        (f"Bearer {token_of('reader')}", ForbiddenError),
        (f"Tuff-Server {SECRET} reader", ForbiddenError),
    ],
)
async def test_only_servers_make_the_calls_of_servers(
    tmp_path: Path, authorization: str, error: type[TuffError]
) -> None:
    admitted(tmp_path, "POST", "/v1/cluster/final", f"Tuff-Server {SECRET}")

    with pytest.raises(error):
        admitted(tmp_path, "POST", "/v1/cluster/final", authorization)


async def test_a_client_can_t_mark_its_request_as_forwarded(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    guard = AccessGuard(file, now_s=lambda: 0.0, cluster_secret=SECRET)
    request = Request({"ns": "a", "t": "b"}, (), None, None, b"", is_forwarded=True)
    request = request._replace(authorization=f"Bearer {token_of('reader')}")

    got = guard.admitted(AwaitedCall(None), made("GET", f"{TOPIC}/messages"), request)

    assert not got.is_forwarded


async def test_the_owner_gets_the_secret_and_the_principal_and_no_token() -> None:
    spawned = Spawned()
    peers = Peers(spawn=spawned, secret=SECRET)
    request = Request(
        {},
        (),
        None,
        None,
        b"",
        authorization=f"Bearer {token_of('reader')}",
        caller=Caller("reader"),
    )
    async with raw_server(answer) as owner:
        await peers.forward(owner.url, "GET", "/", request, within_s=10.0)
        await peers.ask(owner.url, "GET", "/", within_s=10.0)

        forwarded, asked = owner.heard
    await peers.close()
    await asyncio.gather(*spawned.tasks, return_exceptions=True)

    assert f"\r\nAuthorization: Tuff-Server {SECRET} reader\r\n".encode() in forwarded
    assert b"token-of" not in forwarded
    assert f"\r\nAuthorization: Tuff-Server {SECRET}\r\n".encode() in asked
