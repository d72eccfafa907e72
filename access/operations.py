"""The right that each operation needs, and on which topics (decision 0046).

`REQUIREMENTS` has an entry for each endpoint, and `requirement_of` knows the calls between the
servers of a cluster too. The server does not start with a route that has no requirement.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from access.principals import EVERY, SERVER, Principal, Right
from tuff.protocol.errors import ForbiddenError
from tuff.protocol.ids import shown_name
from tuff.protocol.json_forms import parse_json


class Scope(Enum):
    """On what a principal needs the right."""

    OPEN = auto()  # on nothing: the operation needs no principal
    ANYWHERE = auto()  # on nothing, but only a principal may do it
    SOMEWHERE = auto()  # on any topic of the namespace of the path, or of any without a namespace
    TOPIC = auto()  # on the topic of the path
    NAMESPACE = auto()  # on every topic of the namespace of the path
    SERVER = auto()  # on every topic of every namespace
    CLUSTER = auto()  # on nothing: only servers of the cluster call the operation


Topic = tuple[str, str]  # namespace and name
TopicsOfBody = Callable[[str, Mapping[str, object]], Iterable[Topic]]


class Requirement(NamedTuple):
    """One of `rights` is needed on `scope`; and `of_topics` on each topic that the body names.

    `topics_of` lists these, from the namespace of the path and the body. It leaves out what is no
    name of a topic: the handler refuses that. `deletes_messages`: the audit topic refuses it.
    `is_batch`: each of the `calls` in the body counts as a request of a quota."""

    scope: Scope
    rights: tuple[Right, ...] = ()
    of_topics: Right | None = None
    topics_of: TopicsOfBody | None = None
    deletes_messages: bool = False
    is_batch: bool = False


def _of_entries(_namespace: str, body: Mapping[str, object]) -> Iterator[Topic]:
    """The topics of the `publish` of a commit or a run."""
    for entry in _list_of(body, "publish"):
        if isinstance(entry, dict):
            namespace, topic = entry.get("namespace"), entry.get("topic")
            if isinstance(namespace, str) and isinstance(topic, str):
                yield namespace, topic


def _of_calls(namespace: str, body: Mapping[str, object]) -> Iterator[Topic]:
    """The topics of the prepares of a batch."""
    for call in _list_of(body, "calls"):
        members = call.get("body") if isinstance(call, dict) else None
        if isinstance(members, dict):
            yield from _of_entries(namespace, members)


def _of_members(namespace: str, body: Mapping[str, object]) -> Iterator[Topic]:
    """The topics of a heartbeat, and those of the partitions that the member owns."""
    names = (*_list_of(body, "topics"), *_list_of(body, "owned"))
    return ((namespace, name) for name in names if isinstance(name, str))


def _of_offsets(namespace: str, body: Mapping[str, object]) -> Iterator[Topic]:
    """The topics of a commit of offsets."""
    offsets = body.get("offsets")
    return ((namespace, name) for name in (offsets if isinstance(offsets, dict) else ()))


def _list_of(body: Mapping[str, object], name: str) -> Sequence[object]:
    found = body.get(name)
    return found if isinstance(found, list) else ()


_OPEN = Requirement(Scope.OPEN)
_PRINCIPAL = Requirement(Scope.ANYWHERE)
_CREATE = Requirement(Scope.TOPIC, (Right.CREATE,))
_PUBLISH = Requirement(Scope.TOPIC, (Right.PUBLISH,))
_READ = Requirement(Scope.TOPIC, (Right.READ,))
_READ_SOME = Requirement(Scope.SOMEWHERE, (Right.READ,))
_TRANSACT = Requirement(Scope.SOMEWHERE, (Right.TRANSACT,))
_COMMIT = _TRANSACT._replace(of_topics=Right.PUBLISH, topics_of=_of_entries)
_ADMINISTER = Requirement(Scope.SERVER, (Right.ADMINISTER,))
_ADMINISTER_TOPIC = Requirement(Scope.TOPIC, (Right.ADMINISTER,))
_DELETE_MESSAGES = _ADMINISTER_TOPIC._replace(deletes_messages=True)
_ADMINISTER_NAMESPACE = Requirement(Scope.NAMESPACE, (Right.ADMINISTER,))
# Producers and readers need the partitions of a topic.
_SHOW = Requirement(Scope.TOPIC, (Right.READ, Right.PUBLISH, Right.CREATE, Right.ADMINISTER))

_TOPIC = "/v1/namespaces/{ns}/topics/{t}"
_SHARE_GROUP = f"{_TOPIC}/share-groups/{{share}}"
_GROUP = "/v1/namespaces/{ns}/groups/{g}"
_TX = "/v1/transactions/{tx}"

REQUIREMENTS: Mapping[str, Requirement] = {
    # A list has names of topics that the principal may not read.
    "GET /v1/namespaces": Requirement(Scope.SERVER, (Right.READ, Right.ADMINISTER)),
    "GET /v1/topics": Requirement(Scope.SERVER, (Right.READ, Right.ADMINISTER)),
    "GET /v1/namespaces/{ns}/topics": Requirement(Scope.NAMESPACE, (Right.READ, Right.ADMINISTER)),
    f"PUT {_TOPIC}": _CREATE,
    f"GET {_TOPIC}": _SHOW,
    f"DELETE {_TOPIC}": _DELETE_MESSAGES,
    f"PUT {_TOPIC}/properties": _CREATE,
    f"POST {_TOPIC}/truncate": _DELETE_MESSAGES,
    f"POST {_TOPIC}/publish": _PUBLISH,
    f"POST {_TOPIC}/store": _PUBLISH,
    f"POST {_TOPIC}/rollback": _PUBLISH,
    f"POST {_TOPIC}/poll": _READ,
    f"POST {_TOPIC}/wait": _READ,
    f"GET {_TOPIC}/messages": _READ,
    f"GET {_TOPIC}/messages/{{message}}/explain": _READ,
    f"POST {_TOPIC}/messages/{{message}}/explain": _READ,
    f"GET {_TOPIC}/rows": _READ,
    f"GET {_TOPIC}/offsets": _READ,
    f"GET {_TOPIC}/splits": _READ,
    f"GET {_TOPIC}/holds": _READ,
    f"PUT {_TOPIC}/holds/{{name}}": _ADMINISTER_TOPIC,
    f"DELETE {_TOPIC}/holds/{{name}}": _ADMINISTER_TOPIC,
    f"GET {_TOPIC}/positions": _READ,
    f"GET {_TOPIC}/positions/{{name}}": _READ,
    f"PUT {_TOPIC}/positions/{{name}}": _READ,
    f"DELETE {_TOPIC}/positions/{{name}}": _READ,
    f"GET {_TOPIC}/delayed": _PUBLISH,
    f"DELETE {_TOPIC}/delayed/{{id}}": _PUBLISH,
    f"GET {_TOPIC}/share-groups": _READ,
    f"PUT {_SHARE_GROUP}": _READ,
    f"GET {_SHARE_GROUP}": _READ,
    f"DELETE {_SHARE_GROUP}": _ADMINISTER_TOPIC,
    f"POST {_SHARE_GROUP}/lease": _READ,
    f"POST {_SHARE_GROUP}/acknowledge": _READ,
    "GET /v1/namespaces/{ns}/groups": _READ_SOME,
    f"GET {_GROUP}": _READ_SOME,
    f"DELETE {_GROUP}": _ADMINISTER_NAMESPACE,
    f"POST {_GROUP}/heartbeat": _READ_SOME._replace(of_topics=Right.READ, topics_of=_of_members),
    f"POST {_GROUP}/offsets": _READ_SOME._replace(of_topics=Right.READ, topics_of=_of_offsets),
    f"GET {_GROUP}/offsets": _READ_SOME,
    f"POST {_GROUP}/offsets/reset": _ADMINISTER_NAMESPACE,
    "POST /v1/transactions": _TRANSACT,
    "GET /v1/transactions": _ADMINISTER,
    "POST /v1/transactions/run": _COMMIT,
    "POST /v1/transactions/batch": _COMMIT._replace(topics_of=_of_calls, is_batch=True),
    "GET /v1/transactions/prepared": _TRANSACT,  # a resolver of a database needs it
    "GET /v1/transactions/invalid": _ADMINISTER,
    "POST /v1/transactions/invalid/truncate": _ADMINISTER,
    "POST /v1/transactions/snapshot": _ADMINISTER,
    "GET /v1/transactions/snapshot": _ADMINISTER,
    "POST /v1/transactions/service/stop": _ADMINISTER,
    "POST /v1/transactions/service/start": _ADMINISTER,
    "GET /v1/transactions/snapshots": _ADMINISTER,
    "GET /v1/transactions/snapshots/{file}": _ADMINISTER,
    f"GET {_TX}": _TRANSACT,
    f"GET {_TX}/changes": _ADMINISTER,  # the keys of other principals
    f"POST {_TX}/can-commit": _TRANSACT,
    f"POST {_TX}/commit": _COMMIT,
    f"POST {_TX}/prepare": _COMMIT,
    f"POST {_TX}/resolve": _TRANSACT,
    f"POST {_TX}/abort": _TRANSACT,
    f"POST {_TX}/invalidate": _TRANSACT,
    f"POST {_TX}/checkpoint": _TRANSACT,
    f"POST {_TX}/renew": _TRANSACT,
    "GET /v1/sinks": _TRANSACT,
    "GET /v1/sinks/{sink}": _TRANSACT,
    "DELETE /v1/sinks/{sink}": _ADMINISTER,
    "POST /v1/sinks/{sink}/epochs/{epoch}": _TRANSACT,
    "GET /v1/cluster": _ADMINISTER,
    "GET /v1/cluster/topics": _ADMINISTER,
    "POST /v1/cluster/topics/{ns}/{t}/move": _ADMINISTER_TOPIC,
    "POST /v1/cluster/drain": _ADMINISTER,
    "POST /v1/cluster/undrain": _ADMINISTER,
    "GET /v1/settings": _ADMINISTER,
    "GET /v1/backup": _ADMINISTER,
    "GET /v1/session": _PRINCIPAL,  # each call of the session needs its own right
    "GET /health/live": _OPEN,
    "GET /health/startup": _OPEN,
    "GET /health/ready": _OPEN,
    "GET /metrics": _ADMINISTER,
    "GET /openapi.json": _OPEN,
    # The page and its scripts; they contain no data, and send the token with each call.
    "GET /console": _OPEN,
    "GET /console/": _OPEN,
    "GET /console/{version}/{file}": _OPEN,
}

_CALL_OF_SERVERS = re.compile(r"POST /v1/cluster/[a-z-]+")


def requirement_of(operation: str) -> Requirement:
    """What an operation needs. Only servers may make a call below /v1/cluster that is no endpoint.

    Raises: KeyError: it is not known.
    """
    if operation not in REQUIREMENTS and _CALL_OF_SERVERS.fullmatch(operation):
        return Requirement(Scope.CLUSTER)
    return REQUIREMENTS[operation]


def require(
    principal: Principal, needed: Requirement, parameters: Mapping[str, str], body: object
) -> None:
    """Check that the principal may call an operation with these parameters of the path and this
    body: bytes of JSON, or the value that a session has brought.

    Raises:
        ForbiddenError: it may not; the error names the right and the topic.
        BadRequestError: the body would name topics, and is no JSON.
    """
    if needed.scope is Scope.ANYWHERE:
        return
    if needed.scope is Scope.CLUSTER:
        if principal is not SERVER:
            raise ForbiddenError("only the servers of the cluster make this call")
        return
    namespace = EVERY if needed.scope is Scope.SERVER else parameters.get("ns", EVERY)
    topic = _topic_name(parameters["t"]) if needed.scope is Scope.TOPIC else EVERY
    may = principal.may_somewhere if needed.scope is Scope.SOMEWHERE else principal.may
    is_kept = needed.deletes_messages and (namespace, topic) == principal.audit_topic
    if is_kept or not any(may(right, namespace, topic) for right in needed.rights):
        raise _forbidden(principal, needed.rights, needed.scope, namespace, topic)
    if needed.of_topics is not None and not _may_on_all(principal, needed.of_topics, namespace):
        _require_topics(principal, needed.of_topics, _topics(needed, namespace, body))


def _may_on_all(principal: Principal, right: Right, namespace: str) -> bool:
    return principal.audit_topic is None and principal.may(right, namespace, EVERY)


def request_count(needed: Requirement, body: object) -> int:
    """As how many requests of a quota a request with this body counts; the body is as for
    `require`.

    Raises: BadRequestError: a batch is no JSON.
    """
    return max(1, len(_list_of(_members(body), "calls"))) if needed.is_batch else 1


def _require_topics(principal: Principal, right: Right, topics: Iterable[Topic]) -> None:
    for namespace, name in topics:
        topic = _topic_name(name)
        if not principal.may(right, namespace, topic):
            raise _forbidden(principal, (right,), Scope.TOPIC, namespace, topic)


def _topics(needed: Requirement, namespace: str, body: object) -> Iterable[Topic]:
    return () if needed.topics_of is None else needed.topics_of(namespace, _members(body))


def _members(body: object) -> Mapping[str, object]:
    """The members of a body; none where it is no object, which the handler refuses."""
    found = parse_json(body) if isinstance(body, bytes) and body else body
    return found if isinstance(found, dict) else {}


def _topic_name(name: str) -> str:
    return name.partition(":")[0]  # a partition has the rights of its topic


def _place(scope: Scope, namespace: str, topic: str) -> str:
    where = "any namespace" if namespace == EVERY else f"namespace {shown_name(namespace)}"
    match scope:
        case Scope.TOPIC:
            return f"on topic {shown_name(topic)} of {where}"
        case Scope.SOMEWHERE:
            return f"on a topic of {where}"
        case Scope.NAMESPACE:
            return f"on all topics of {where}"
        case _:
            return "on all topics of all namespaces"


def _forbidden(
    principal: Principal, rights: Sequence[Right], scope: Scope, namespace: str, topic: str
) -> ForbiddenError:
    if (namespace, topic) == principal.audit_topic:
        return ForbiddenError(
            f"{namespace}:{topic} is the audit topic, which only the server creates, changes and "
            "writes; principals with the right administer on it read it"
        )
    return ForbiddenError(
        f"principal {principal.name} does not have the right {' or '.join(rights)} "
        f"{_place(scope, namespace, topic)}; the access file of the server gives rights"
    )
