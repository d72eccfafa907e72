"""Refuses requests that name a foreign host, or that a web page of another site sent.

A browser sends requests to this machine for any web page that asks it to. The browser marks them:
`Sec-Fetch-Site` says how the page relates to the address, `Origin` names the page. Neither helps
against DNS rebinding: there the host name of the page resolves to this machine, and the browser
takes the server for the page's own. Such a request still names the page's host in `Host`, so the
server answers only to hosts that it knows (protocol §1).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address

from tuff.protocol.errors import CrossSiteError, HostNotAllowedError, TuffError
from tuff.protocol.json_bodies import shown

JUDGED_COUNT_MAX = 256  # values of Host whose judgement is remembered
AUTHORITY_CHARACTERS_MAX = 512  # no host name and port is as long; bounds what is remembered

_NAME = re.compile(r"[A-Za-z0-9._~-]+")
_AUTHORITY = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_NAME.pattern})(?::([0-9]{{0,5}}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#]+)")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# `none`: a person typed the address, or opened a bookmark.
_OWN_SITES = frozenset({"same-origin", "none"})


def bare_host(text: str) -> str | None:
    """The host name or address normalised: lower case, an IPv6 address without brackets.
    None where it is neither, as with a port, a scheme or a wildcard."""
    try:
        return str(ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        # A name may end in the dot of the root.
        return text.lower().removesuffix(".") if _NAME.fullmatch(text) else None


class AllowedHosts:
    """The hosts to which the server answers: those of loopback, the addresses that it listens on,
    and those that are `allowed` by name. A server that listens on all addresses of the machine
    answers to every IP address, since DNS rebinding needs a name."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(map(bare_host, allowed))
        self._bound: set[str] = set()
        self._is_everywhere = False
        self._judge = lru_cache(JUDGED_COUNT_MAX)(self._is_own)

    def bind(self, name: str, addresses: Iterable[str]) -> None:
        """Answer, too, to the name and the addresses on which a socket listens."""
        if (host := bare_host(name)) is not None:
            self._bound.add(host)
        for text in addresses:
            address = ip_address(text.partition("%")[0])
            self._is_everywhere |= address.is_unspecified
            self._bound.add(str(address))
        self._judge.cache_clear()

    def refusal(
        self, fields: Mapping[str, Sequence[str]], *, authority: str | None = None
    ) -> TuffError | None:
        """Why a request with these header fields is refused; None where it is not. At most one of
        them is `Host`. `authority` is that of an absolute request target, and is checked too."""
        named = [*fields.get("host", ()), *(() if authority is None else (authority,))]
        # A browser always sends a Host. HTTP/1.0 need not.
        for each in named:
            if len(each) > AUTHORITY_CHARACTERS_MAX or not self._judge(each):
                return HostNotAllowedError(
                    f"the server does not answer to the host {shown(each)}; use localhost, or add "
                    "the host to server.allowed_hosts"
                )
        return self._cross_site(fields, named[-1] if named else None)

    def _is_own(self, authority: str) -> bool:
        found = _AUTHORITY.fullmatch(authority)
        host = None if found is None else bare_host(found[1])
        if host is None:
            return False
        if host == "localhost" or host in self._bound or host in self._allowed:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return self._is_everywhere or address.is_loopback

    def _cross_site(
        self, fields: Mapping[str, Sequence[str]], own: str | None
    ) -> CrossSiteError | None:
        sites = fields.get("sec-fetch-site", ())
        if not _OWN_SITES.issuperset(sites):
            return CrossSiteError(
                "a browser sent the request for a page of another site (Sec-Fetch-Site: "
                f"{shown(', '.join(sites))}); open the address by itself"
            )
        for origin in fields.get("origin", ()):
            if not self._is_same(origin, own):
                return CrossSiteError(
                    f"a browser sent the request for a page of {shown(origin)}; pages of other "
                    "origins may not call the server"
                )
        return None

    def _is_same(self, origin: str, own: str | None) -> bool:
        """Whether a page of this origin is one of the server's own host and port, or of a host that
        is allowed by name: a proxy may have put its own Host in place of the browser's."""
        split = _ORIGIN.fullmatch(origin)
        page = None if split is None else _AUTHORITY.fullmatch(split[2])
        if split is None or page is None:
            return False
        host = bare_host(page[1])
        if host in self._allowed:
            return True
        asked = None if own is None else _AUTHORITY.fullmatch(own)
        if asked is None:
            return False
        default = _DEFAULT_PORTS[split[1]]
        is_same_port = _port_of(page, default) == _port_of(asked, default)
        return host == bare_host(asked[1]) and is_same_port


def _port_of(authority: re.Match[str], default: int) -> int:
    return int(authority[2]) if authority[2] else default
