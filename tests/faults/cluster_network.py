"""A network in Linux network namespaces, whose machines can be cut off from each other.

The program itself runs in a new network namespace (`entering`): there is a bridge, with the
services. Each machine is one more namespace, with a link to the bridge. None of them has a name, or
touches the namespace that the program was started from. The kernel removes each with its last
process, however that ends, so two runs can't meet.

    10.77.0.1         clients, which are this process
    10.77.0.2, .3     HBase and ZooKeeper, for the machines; here they listen on 127.0.0.1
    10.77.0.11, …     the machines

A cut is a filter of nftables at each end of the machine's link, for what arrives there.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from tests import programs

TOOLS = ("unshare", "nsenter", "ip", "tc", "nft")

EVERYWHERE = "10.77.0.0/24"
CLIENTS, HBASE, ZOOKEEPER = "10.77.0.1", "10.77.0.2", "10.77.0.3"
_FIRST_MACHINE = 11

_RESET = "tcp flags & rst == 0 reject with tcp reset"  # the resets themselves pass
_LOSE = "numgen random mod 100 < 20 drop"  # percent
MODES: Mapping[str, tuple[str, str]] = {  # verdicts on packets to the machine, and from it
    "silently": ("drop", "drop"),
    "with resets": (_RESET, _RESET),
    "inbound only": ("drop", "accept"),
    "outbound only": ("accept", "drop"),
}
LOSSY = "with 20 % loss"
_VERDICTS = {**MODES, LOSSY: (_LOSE, _LOSE)}

# A queue of 200 ms, behind which packets are lost: less than three servers with 300 topics send.
_NARROW = "root tbf rate 256kbit burst 10kb latency 200ms"

_BRIDGE = f"""
ip link set lo up
ip link add hub type bridge
ip addr add {CLIENTS}/24 dev hub
ip addr add {HBASE}/24 dev hub
ip addr add {ZOOKEEPER}/24 dev hub
ip link set hub up
echo 1 >/proc/sys/net/ipv4/conf/hub/route_localnet
nft -f - <<END
table ip services {{
  chain arriving {{
    type nat hook prerouting priority dstnat
    iifname hub ip daddr {{ {HBASE}, {ZOOKEEPER} }} dnat to 127.0.0.1
  }}
}}
END
"""


def entering() -> list[str]:
    """What runs a command in a new network namespace, as its last step. Root needs no more; for
    others, the command is root in a user namespace."""
    return ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def why_missing() -> str | None:
    """What this machine lacks for network namespaces, in a sentence; None if nothing."""
    if lacking := programs.why_missing(*TOOLS):
        return f"a network namespace {lacking}"
    tried = subprocess.run([*entering(), "sh", "-ec", _BRIDGE], capture_output=True, text=True)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[0]
        user = "root" if os.geteuid() == 0 else "a user who is not root"
        return f"this machine does not let {user} make network namespaces: {reason}"
    return None


class Machine:
    """A network namespace with an address, which lives until `close`."""

    def __init__(self, number: int) -> None:
        self.address = f"10.77.0.{_FIRST_MACHINE + number}"
        self._link = f"machine{number}"
        self._tables = count(1)
        # It ends with its standard input, which is with this process at the latest.
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends this process first, and the namespace with it
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.namespace = f"/proc/{self._process.pid}/ns/net"
        self.under = ("nsenter", f"--net={self.namespace}")  # runs a command there
        peer = f"peer name eth0 netns {self._process.pid}"
        _run("sh", "-ec", f"ip link add {self._link} type veth {peer}")
        _run("ip", "link", "set", self._link, "master", "hub", "up")
        inside = f"ip link set lo up; ip addr add {self.address}/24 dev eth0; ip link set eth0 up"
        _run(*self.under, "sh", "-ec", inside)

    @contextmanager
    def cut(self, addresses: Sequence[str], mode: str) -> Iterator[None]:
        """Packets between this machine and these addresses fail by the mode, one of `MODES` or
        `LOSSY`, during the block."""
        table = f"{self._link}_{next(self._tables)}"
        arriving, leaving = _VERDICTS[mode]
        them = f"{{ {', '.join(addresses)} }}"
        ends = (
            (self.under, f"device eth0 priority 0; ip saddr {them} {arriving}"),
            ((), f"device {self._link} priority 0; ip daddr {them} {leaving}"),
        )
        for under, rule in ends:
            chain = f"type filter hook ingress {rule}"
            _run(*under, "nft", f"table netdev {table} {{ chain one {{ {chain}; }}; }}")
        try:
            yield
        finally:
            for under, _ in ends:
                _run(*under, "nft", "delete", "table", "netdev", table)

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Its link is down during the block."""
        _run("ip", "link", "set", self._link, "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", self._link, "up")

    @contextmanager
    def narrowed(self) -> Iterator[None]:
        """Its link carries 256 kbit/s during the block; more than that is late, and then lost."""
        ends = ((*self.under, "tc"), "eth0"), (("tc",), self._link)
        for command, device in ends:
            _run(*command, "qdisc", "add", "dev", device, *_NARROW.split())
        try:
            yield
        finally:
            for command, device in ends:
                _run(*command, "qdisc", "del", "dev", device, "root")

    def close(self) -> None:
        self._process.communicate()


def machines(number: int) -> list[Machine]:
    """So many machines, and the bridge. To be called once, in a namespace that was entered."""
    _run("sh", "-ec", _BRIDGE)
    return [Machine(each) for each in range(number)]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
