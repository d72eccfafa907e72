"""Each kind of cut stops the packets that it names, and no others."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from socket import SOCK_DGRAM, SOCK_STREAM, SocketKind, create_server, socket

import pytest

from tests.faults import cluster_network
from tests.faults.cluster_network import CLIENTS, HBASE, LOSSY, ZOOKEEPER, Machine, machines
from tests.http.client import until

CLONE_NEWNET = 0x40000000
SHORT_S = 0.2  # seconds in which nothing may arrive
LONG_S = 20.0


def socket_in(machine: Machine, kind: SocketKind) -> socket:
    """A socket that is in the machine's namespace, as is the thread that makes it."""

    def make() -> socket:
        namespace = os.open(machine.namespace, os.O_RDONLY)
        assert ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) == 0
        os.close(namespace)
        return socket(type=kind)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def bound(made: socket, address: str) -> socket:
    made.bind((address, 0))
    return made


def passes(sender: socket, receiver: socket) -> bool:
    """Whether a datagram arrives."""
    sender.sendto(b"hello", receiver.getsockname())
    receiver.settimeout(SHORT_S)
    try:
        return receiver.recv(10) == b"hello"
    except TimeoutError:
        return False


def pass_again(sender: socket, receiver: socket) -> None:
    """Until one arrives: a link that went up needs a moment."""
    until(lambda: passes(sender, receiver), within_s=LONG_S, what="a datagram arrives")


def check_a_silent_and_a_one_way_cut_drop_packets_in_their_directions() -> None:
    one, other = machines(2)
    expected = {"silently": (0, 0), "inbound only": (1, 0), "outbound only": (0, 1)}
    here = bound(socket(type=SOCK_DGRAM), CLIENTS)
    there = bound(socket_in(one, SOCK_DGRAM), one.address)
    with here, there, bound(socket_in(other, SOCK_DGRAM), other.address) as third:
        for mode, ways in expected.items():
            with one.cut([CLIENTS], mode):
                assert (passes(there, here), passes(here, there)) == ways, mode
                pass_again(there, third)
                pass_again(third, there)
            pass_again(there, here)
            pass_again(here, there)
        with one.cut([other.address], "silently"):
            assert not passes(third, there)
            pass_again(there, here)
        with one.unplugged():
            assert not passes(here, there)
        pass_again(here, there)


def check_a_cut_with_resets_ends_connections_and_refuses_new_ones() -> None:
    (one,) = machines(1)
    with create_server(("127.0.0.1", 0)) as service, socket_in(one, SOCK_STREAM) as client:
        port = service.getsockname()[1]
        client.connect((HBASE, port))
        with service.accept()[0], one.cut([HBASE], "with resets"):
            with socket_in(one, SOCK_STREAM) as another, pytest.raises(ConnectionRefusedError):
                another.connect((HBASE, port))
            with socket_in(one, SOCK_STREAM) as another:
                another.settimeout(LONG_S)
                another.connect((ZOOKEEPER, port))
            client.settimeout(LONG_S)
            client.sendall(b"hello")
            with pytest.raises(ConnectionResetError):
                client.recv(10)


def check_a_lossy_link_loses_some_packets() -> None:
    (one,) = machines(1)
    here = bound(socket(type=SOCK_DGRAM), CLIENTS)
    with here, socket_in(one, SOCK_DGRAM) as there, one.cut([CLIENTS], LOSSY):
        for _ in range(200):
            there.sendto(b"hello", here.getsockname())
        here.settimeout(SHORT_S)
        received = 0
        while received < 200:
            try:
                here.recv(10)
            except TimeoutError:
                break
            received += 1

    assert 100 < received < 200


def check_a_narrow_link_delays_packets() -> None:
    (one,) = machines(1)
    here = bound(socket(type=SOCK_DGRAM), CLIENTS)
    here.settimeout(LONG_S)
    with here, socket_in(one, SOCK_DGRAM) as there, one.narrowed():
        began_s = time.monotonic()
        for _ in range(13):  # 10 kB at once, and the rest at 32 kB a second
            there.sendto(bytes(1_000), here.getsockname())
        for _ in range(13):
            here.recv(2_000)

    assert time.monotonic() - began_s > 0.05


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.skipif(
    cluster_network.why_missing() is not None, reason=str(cluster_network.why_missing())
)
@pytest.mark.parametrize("check", CHECKS)
def test_in_a_network_namespace(check: Callable[[], None]) -> None:
    program = f"from {__name__} import {check.__name__} as check; check()"

    done = subprocess.run(
        [*cluster_network.entering(), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert cluster_network.why_missing() == (
        "a network namespace needs unshare and nsenter and ip and tc and nft, which is not "
        "installed: apt-get install iproute2 nftables util-linux"
    )
