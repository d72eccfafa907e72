"""Binds the TCP sockets of the server, also several for one address."""

import asyncio
import socket
from collections.abc import Sequence


async def bind(host: str, port: int, *, count: int = 1) -> list[list[socket.socket]]:
    """`count` groups of sockets. Each group has one socket for each address of the host, and the
    kernel distributes connections over the groups.

    Raises: OSError: the host has no address, or another process has the port.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    groups: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        for family, _, _, _, address in dict.fromkeys(infos):
            _bind_address(groups, family, address)
    except OSError:
        close(groups)
        raise
    return groups


def addresses(sockets: Sequence[socket.socket]) -> list[str]:
    """The addresses at which they listen."""
    return [each.getsockname()[0] for each in sockets]


def port(sockets: Sequence[socket.socket]) -> int:
    """The port of the first one."""
    return int(sockets[0].getsockname()[1])


def close(groups: Sequence[Sequence[socket.socket]]) -> None:
    """Close all of them."""
    for group in groups:
        for each in group:
            each.close()


def _bind_address(
    groups: list[list[socket.socket]], family: int, address: tuple[object, ...]
) -> None:
    for number, group in enumerate(groups):
        bound = socket.socket(family, socket.SOCK_STREAM)
        group.append(bound)
        bound.settimeout(0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if number > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        if number == 0:
            address = bound.getsockname()  # with the port, where the kernel has chosen it
            if len(groups) > 1:
                # Only now: with the option before, the port of another server could be shared.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
