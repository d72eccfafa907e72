"""Principals and their rights, read from the access file (decision 0046).

    file      := principals: {name: principal}
    principal := tokens: [sha256], certificates: [name], rights: [entry], tenant: name, quotas
    quotas    := requests_per_second: number, bytes_per_second: number, open_transactions: number
    sha256    := "sha256:" 64 hex digits
    entry     := namespace: name | "*" (default), topics: [pattern] (default: ["*"]), allow: [right]

The name of a certificate is a subject alternative name of it, for DNS or a URI.
A pattern is a shell pattern of topic names. A topic's partitions have the rights of the topic.
Principals without a tenant are one tenant (decision 0066).
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from hashlib import sha256
from math import inf
from typing import Any

from access.quotas import Quota
from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import check_name
from tuff.protocol.operations import Right

EVERY = "*"  # every namespace, or every topic
_QUOTAS = tuple(each.name for each in fields(Quota))
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


class AccessFileError(Exception):
    """The access file is not valid; the message is one sentence that names the place."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights on the topics of a namespace, or of every namespace."""

    namespace: str
    topics: tuple[str, ...]
    allow: frozenset[Right]

    def cover(self, namespace: str, topic: str) -> bool:
        """Whether they are about this topic. `EVERY` as namespace or topic: about all of them."""
        if self.namespace not in (EVERY, namespace):
            return False
        if topic == EVERY:
            return EVERY in self.topics
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or a program that sends requests."""

    name: str
    rights: tuple[Rights, ...] = ()
    quota: Quota = field(default_factory=Quota)
    # Its namespace and name. No principal creates it or publishes to it, and only `administer`
    # reads it. None: there is none for this principal.
    audit_topic: tuple[str, str] | None = None
    tenant: str = ""  # empty: that of all principals without one

    def may(self, right: Right, namespace: str, topic: str) -> bool:
        """Whether the principal has the right on the topic; `EVERY` as namespace or topic: on all
        of them, the audit topic aside."""
        if (namespace, topic) == self.audit_topic:
            if right in (Right.CREATE, Right.PUBLISH):
                return False
            right = Right.ADMINISTER
        return any(right in each.allow and each.cover(namespace, topic) for each in self.rights)

    def may_somewhere(self, right: Right, namespace: str, _topic: str = EVERY) -> bool:
        """Whether the principal has the right on any topic of the namespace; `EVERY`: of any
        namespace."""
        return any(
            right in each.allow and (namespace == EVERY or each.namespace in (EVERY, namespace))
            for each in self.rights
        )


# A server of the cluster that makes a call of its own. It is found by the cluster's secret.
SERVER = Principal("server of the cluster", (Rights(EVERY, (EVERY,), frozenset(Right)),))


@dataclass(frozen=True, slots=True)
class Principals:
    """The principals of an access file."""

    by_name: Mapping[str, Principal]
    by_token_hash: Mapping[str, Principal]
    by_certificate: Mapping[str, Principal]

    def of_token(self, token: str) -> Principal | None:
        """The principal of a token; None without one."""
        return self.by_token_hash.get(hash_of(token))

    def of_certificate(self, names: Iterable[str]) -> Principal | None:
        """The principal of a client certificate with these names; None where they are of no
        principal, or of more than one."""
        found = {
            principal.name: principal
            for name in names
            if (principal := self.by_certificate.get(name)) is not None
        }
        return next(iter(found.values())) if len(found) == 1 else None


def hash_of(token: str) -> str:
    """The SHA-256 of a token, in hex. A token has 256 random bits, so its hash tells nothing."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def parse(text: str, audit_topic: tuple[str, str] | None = None) -> Principals:
    """The principals of an access file, and the namespace and name of the topic that has their
    acts.

    Raises:
        AccessFileError: it is not valid.
    """
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        raise AccessFileError(f"it is no TOML: {error}") from None
    _check_keys(document, {"principals"}, "the file")
    by_name: dict[str, Principal] = {}
    by_hash: dict[str, Principal] = {}
    by_certificate: dict[str, Principal] = {}
    for name, entry in _table(document.get("principals", {}), "principals").items():
        place = f"principals.{name}"
        table = _table(entry, place)
        _check_keys(table, {"tokens", "certificates", "rights", "tenant", *_QUOTAS}, place)
        by_name[name] = principal = Principal(
            _name(name, place), tuple(_rights(table, place)), _quota(table, place), audit_topic,
            _tenant(table, place),
        )  # fmt: skip
        for token in _texts(table.get("tokens", []), f"{place}.tokens"):
            _add(by_hash, _token_hash(token, place), principal, f"{place}.tokens has a token")
        for certificate in _texts(table.get("certificates", []), f"{place}.certificates"):
            _add(by_certificate, certificate, principal, f"{place}.certificates has a name")
    if not by_hash and not by_certificate:
        raise AccessFileError(
            "no principal has a token or a certificate; `tuff access token NAME` makes a token"
        )
    return Principals(by_name, by_hash, by_certificate)


def _add(known: dict[str, Principal], key: str, principal: Principal, what: str) -> None:
    if key in known:
        raise AccessFileError(f"{what} that {known[key].name} has too")
    known[key] = principal


def _tenant(table: Mapping[str, object], place: str) -> str:
    if "tenant" not in table:
        return ""
    tenant, where = table["tenant"], f"{place}.tenant"
    if not isinstance(tenant, str):
        raise AccessFileError(f"{where} is a text")
    return _name(tenant, where)


def _quota(table: Mapping[str, object], place: str) -> Quota:
    given: dict[str, Any] = {name: table[name] for name in _QUOTAS if name in table}
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 1 <= value < inf:
            raise AccessFileError(f"{place}.{name} is a number, 1 or more")
    if not isinstance(given.get("open_transactions", 1), int):
        raise AccessFileError(f"{place}.open_transactions is a whole number")
    return Quota(**given)


def _rights(table: Mapping[str, object], place: str) -> Iterator[Rights]:
    entries = table.get("rights", [])
    if not isinstance(entries, list):
        raise AccessFileError(f"{place}.rights is a list of tables")
    for number, entry in enumerate(entries):
        where = f"{place}.rights[{number}]"
        given = _table(entry, where)
        _check_keys(given, {"namespace", "topics", "allow"}, where)
        namespace = given.get("namespace", EVERY)
        if not isinstance(namespace, str):
            raise AccessFileError(f"{where}.namespace is a text")
        if namespace != EVERY:
            _name(namespace, f"{where}.namespace")
        topics = _texts(given.get("topics", [EVERY]), f"{where}.topics")
        yield Rights(namespace, tuple(topics), _allowed(given, where))


def _allowed(given: Mapping[str, object], where: str) -> frozenset[Right]:
    names = _texts(given.get("allow", []), f"{where}.allow")
    known = {right.value for right in Right}
    if not names or not known.issuperset(names):
        # No value is shown: a token may stand in the wrong place.
        raise AccessFileError(f"{where}.allow is a list of {', '.join(Right)}")
    return frozenset(map(Right, names))


def _token_hash(token: str, place: str) -> str:
    found = _HASH.fullmatch(token)
    if found is None:
        # The value is not shown: it may be a token.
        raise AccessFileError(
            f"{place}.tokens has an entry that is not sha256: and 64 hex digits; "
            "`tuff access token NAME` makes one"
        )
    return found[1]


def _name(text: str, place: str) -> str:
    try:
        return check_name(text, what="name")
    except InvalidNameError as error:
        raise AccessFileError(f"{place}: {error.detail}") from None


def _check_keys(table: Mapping[str, object], known: Collection[str], place: str) -> None:
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise AccessFileError(
            f"{place} has no key {unknown[0]!r}; known: {', '.join(sorted(known))}"
        )


def _table(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise AccessFileError(f"{place} is a table")
    return value


def _texts(value: object, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AccessFileError(f"{place} is a list of texts")
    return value
