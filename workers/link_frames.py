"""The frames between the main process and a worker.

Both ends run the same version, and the socket pair between them has no address. So the frames are
no public format. Each is an array in MessagePack, and its first element is its kind:

    of the main process                     of the worker
    hello    := {name: value}               ready    :=
    reply    := id status type body fields  call     := id route values query type accept body more
    continue := id                          open     := the same, less the body, which is empty
    part     := id seconds type | nil       body     := id bytes
                bytes | nil                 cancel   := id
    abort    := id                          taken    := id
    ping     := now_ms                      lost     := id is_timeout
    ending   :=                             answered := operation status seconds
    close    := seconds                     pong     :=

    more     := nil | [is_forwarded wants_redirect authorization certificate address
                      traceparent upgrade]

A call names its route by its position in the list of the hello. A request whose body has not
arrived yet is *opened* with its head: the main process admits it and checks its rights, and says
whether it continues with the body. A reply of status 0 ends one that was sent in parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any

import msgpack

from tuff.protocol.exchange import Reply, Request


class Kind(IntEnum):
    """The kinds of frames."""

    HELLO = 0
    REPLY = 1
    PART = 2
    ABORT = 3
    PING = 4
    ENDING = 5
    CLOSE = 6
    CONTINUE = 7
    READY = 16
    CALL = 17
    OPEN = 18
    CANCEL = 19
    TAKEN = 20
    LOST = 21
    ANSWERED = 22
    PONG = 23
    BODY = 24


CALL, REPLY = int(Kind.CALL), int(Kind.REPLY)  # packed faster as integers
STREAMED = 0  # the status of a reply that was sent in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a worker needs to know. `listening`, `handover` and `counts` are descriptors that it
    inherits. `tls_files` are the certificate, the key, and the authority or ""; or there are none.
    `checks_heads`: an access file decides who may send a body."""

    number: int
    listening: Sequence[int]
    handover: int
    counts: int
    workers: int
    routes: Sequence[Sequence[str]]
    streams: Sequence[Sequence[str]]
    host: str
    addresses: Sequence[str]
    allowed_hosts: Sequence[str]
    max_request_bytes: int
    max_connections: int
    tls_files: Sequence[str]
    checks_heads: bool
    log_level: str
    log_format: str
    now_ms: int

    def frame(self) -> bytes:
        return pack((Kind.HELLO, asdict(self)))

    @staticmethod
    def of(form: Any) -> "Hello":
        return Hello(**{each.name: form[each.name] for each in fields(Hello)})


_NOTHING_MORE = (False, False, None, (), "", None, None)
# Header fields may have bytes that are no UTF-8.
_packer = msgpack.Packer(unicode_errors="surrogateescape")


def pack(elements: tuple[object, ...]) -> bytes:
    """A frame with these elements."""
    packed: bytes = _packer.pack(elements)
    return packed


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(unicode_errors="surrogateescape", max_buffer_size=0)

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """The frames that these bytes complete."""
        self._unpacker.feed(data)
        frames: Iterator[list[Any]] = self._unpacker
        return frames


def call_elements(call_id: int, route: int, request: Request) -> tuple[object, ...]:
    """The elements of a call, without the kind."""
    (
        parameters, query, content_type, accept, body, is_forwarded, wants_redirect, authorization,
        certificate, address, traceparent, upgrade, _, _, _,
    ) = request  # fmt: skip
    more = (
        is_forwarded, wants_redirect, authorization, certificate, address, traceparent, upgrade,
    )  # fmt: skip
    values = list(parameters.values())
    given = None if more == _NOTHING_MORE else more
    return call_id, route, values, query or None, content_type, accept, body, given


def request_of(elements: Sequence[Any], names: tuple[str, ...]) -> Request:
    """The request of a call, whose elements behind the route these are."""
    values, query, content_type, accept, body, more = elements
    parameters = dict(zip(names, values, strict=True))
    pairs = tuple([(name, value) for name, value in query]) if query else ()
    if more is None:
        return Request(parameters, pairs, content_type, accept, body)
    is_forwarded, wants_redirect, authorization, certificate, *rest = more
    address, traceparent, upgrade = rest
    return Request(
        parameters, pairs, content_type, accept, body, is_forwarded, wants_redirect, authorization,
        tuple(certificate), address, traceparent, upgrade=upgrade,
    )  # fmt: skip


def reply_frame(call_id: int, reply: Reply) -> bytes:
    """The frame of a reply to HTTP."""
    status, content_type, body, headers, _ = reply
    return pack((REPLY, call_id, status, content_type, body, headers))


def names_in(path: str) -> tuple[str, ...]:
    """The names of the parameters in the path of a route."""
    return tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))
