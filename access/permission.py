"""The right that each operation needs, and on which topics (decision 0046).

`tuff.protocol.operations` says which right that is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from access.principals import EVERY, SERVER, Principal
from tuff.protocol.errors import ForbiddenError
from tuff.protocol.ids import names_in, shown_name
from tuff.protocol.json_bodies import parse_json
from tuff.protocol.operations import Access, Right, Scope, TopicsIn

NamedTopic = tuple[str, str]  # namespace and name


def require(
    principal: Principal, needed: Access, parameters: Mapping[str, str], body: object
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
    if needed.of_topics is not None and not _may_on_all(principal, needed.of_topics):
        _require_topics(principal, needed.of_topics, _topics(needed, namespace, body))


def _may_on_all(principal: Principal, right: Right) -> bool:
    # A body may name topics of other namespaces than the path.
    return principal.audit_topic is None and principal.may(right, EVERY, EVERY)


def _require_topics(principal: Principal, right: Right, topics: Iterable[NamedTopic]) -> None:
    for namespace, name in topics:
        topic = _topic_name(name)
        if not principal.may(right, namespace, topic):
            raise _forbidden(principal, (right,), Scope.TOPIC, namespace, topic)


def _topics(needed: Access, namespace: str, body: object) -> Iterable[NamedTopic]:
    """The topics that the body names. What is no name of a topic is left out: the handler refuses
    it."""
    members = _members(body)
    match needed.topics_in:
        case TopicsIn.PUBLISH:
            return _of_entries(members)
        case TopicsIn.MEMBER:
            names: Iterable[object] = (*_list_of(members, "topics"), *_list_of(members, "owned"))
        case TopicsIn.OFFSETS:
            named = [members.get("offsets"), members.get("begun")]
            names = [name for each in named if isinstance(each, dict) for name in each]
        case TopicsIn.WAIT:
            waited = members.get("topics")
            names = waited if isinstance(waited, dict) else ()
        case None:
            names = ()
        case _:
            assert_never(needed.topics_in)
    return (names_in(namespace, name) for name in names if isinstance(name, str))


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


def _of_entries(body: Mapping[str, object]) -> Iterator[NamedTopic]:
    for entry in _list_of(body, "publish"):
        if isinstance(entry, dict):
            namespace, topic = entry.get("namespace"), entry.get("topic")
            if isinstance(namespace, str) and isinstance(topic, str):
                yield namespace, topic


def _list_of(body: Mapping[str, object], name: str) -> Sequence[object]:
    found = body.get(name)
    return found if isinstance(found, list) else ()
