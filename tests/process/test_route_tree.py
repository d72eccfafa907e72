"""A request line has the same route whether it, or a line with another number, is in the cache."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.requests_and_replies import EMPTY_REPLY, Reply, Request, Route
from process.admission_and_dispatch import callee_of
from process.route_tree import (
    CACHED_BYTES_MAX,
    CACHED_COUNT_MAX,
    BoundedCache,
    RoutedLine,
    RouteTree,
)
from tests.made_operations import made
from tuff.protocol.errors import NotFoundError


async def _answer(_request: Request) -> Reply:
    return EMPTY_REPLY


PATHS = (
    "/v1/transactions",
    "/v1/transactions/run",
    "/v1/transactions/{tx}",
    "/v1/transactions/{tx}/commit",
    "/v1/namespaces/{ns}/topics/{t}/publish",
)
CALLEES = [
    callee_of(Route(made(method, path), _answer)) for method in ("GET", "POST") for path in PATHS
]
SEGMENTS = st.sampled_from(
    ["v1", "transactions", "run", "namespaces", "topics", "commit", "publish", "0", "a", "", "x%41",
     "1480000000000000000", "1480000000000000007", "148000000000000000", "14800000000000000000"]
)  # fmt: skip
LIKELY = st.sampled_from(PATHS).flatmap(
    lambda path: st.tuples(
        *(SEGMENTS if part.startswith("{") else st.just(part) for part in path.split("/"))
    )
)
TARGETS = st.builds(
    lambda parts, query: "/".join(parts) + query,
    LIKELY | st.lists(SEGMENTS, min_size=1, max_size=6).map(lambda parts: ("", *parts)),
    st.sampled_from(["", "", "?a=1", "?a=1480000000000000000&a=", "?/1480000000000000000/", "/"]),
)
METHODS = st.sampled_from(["GET", "POST", "PATCH"])


@given(st.lists(st.tuples(TARGETS, METHODS), min_size=1, max_size=12))
@example([("/v1/transactions/0/commit", "POST"), ("/v1/transactions/1480000000000000000", "POST")])
def test_a_line_has_the_same_route_whatever_is_cached(
    lines: list[tuple[str, str]],
) -> None:
    used = RouteTree(CALLEES)

    for target, method in lines:
        line = method.encode(), target.encode()
        expected = RouteTree(CALLEES)._read(method, line[1])
        for _ in range(2):
            found = used.find(*line)
            assert found[:3] == expected[:3]
            assert str(found.refusal) == str(expected.refusal)


def test_a_line_with_a_number_has_it_as_its_parameter() -> None:
    tree = RouteTree(CALLEES)
    targets = [b"/v1/transactions/148000000000000000%d/commit" % i for i in (1, 2)]

    found = [tree.find(b"POST", each) for each in targets]

    (callee,) = [each for each in CALLEES if each.operation == "POST /v1/transactions/{tx}/commit"]
    assert found == [RoutedLine(callee, {"tx": f"148000000000000000{i}"}, ()) for i in (1, 2)]


@pytest.mark.parametrize(
    ("target", "query"),
    [
        (b"?requestId=7f.1", (("requestId", "7f.1"),)),
        (b"?age=5&requestId=7f", (("age", "5"), ("requestId", "7f"))),
        (b"?requestId=7f&age=5", (("requestId", "7f"), ("age", "5"))),
        (b"?requestId=%37f#requestId=8", (("requestId", "7f"),)),
        (b"#?a=1", ()),
    ],
)
def test_a_query_is_read_as_it_is(target: bytes, query: tuple[tuple[str, str], ...]) -> None:
    tree = RouteTree(CALLEES)

    found = [tree.find(b"POST", b"/v1/transactions" + target) for _ in range(2)]

    assert [each.query for each in found] == [query] * 2
    assert [each.refusal for each in found] == [None] * 2


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/nothing", 404),
        ("/v1/transactions/1480000000000000000/nothing", 404),
        ("//v1", 404),
        ("/v1/transactions/", 404),
        ("*", 404),
    ],
)
def test_a_line_without_a_route_is_refused(target: str, status: int) -> None:
    found = RouteTree(CALLEES).find(b"POST", target.encode())

    assert found.callee.operation == "POST unmatched"
    assert isinstance(found.refusal, NotFoundError)
    assert found.refusal.status == status


def test_a_method_without_a_route_is_refused_with_those_that_are_served() -> None:
    found = RouteTree(CALLEES).find(b"PUT", b"/v1/transactions")

    assert found.callee.operation == "PUT unmatched"
    assert isinstance(found.refusal, Reply)
    assert (found.refusal.status, found.refusal.headers) == (405, (("Allow", "GET, POST"),))


def test_an_absolute_address_names_its_host() -> None:
    found = RouteTree(CALLEES).find(b"GET", b"http://x:7/v1/transactions/a?b=c")

    assert (found.authority, found.parameters, found.query) == ("x:7", {"tx": "a"}, (("b", "c"),))


def test_the_caches_are_bounded() -> None:
    tree = RouteTree(CALLEES)

    for i in range(CACHED_COUNT_MAX + 10):
        tree.find(b"POST", b"/v1/transactions/1%018d/commit?a=%d" % (i, i))
        tree.find(b"POST", b"/v1/namespaces/a/topics/t%d/publish?requestId=%d" % (i, i))
        tree.find(b"POST", b"/v1/nothing/%d" % i)
    tree.find(b"POST", b"/v1/namespaces/a/topics/%b/publish" % (b"t" * CACHED_BYTES_MAX))

    assert [len(each) for each in (tree._numbered, tree._paths, tree._queries)] == [1, 10, 10]


def test_a_value_is_computed_once_and_a_full_cache_is_emptied() -> None:
    asked: list[bytes] = []

    def answer(word: bytes) -> bytes | None:
        asked.append(word)
        return None if word == b"none" else word.upper()

    remembered = BoundedCache(answer, bytes_max=8, count_max=3)

    assert [remembered[word] for word in (b"a", b"a", b"none", b"none")] == [b"A", b"A", None, None]
    assert [remembered[b"much too long"] for _ in range(2)] == [b"MUCH TOO LONG"] * 2
    assert asked == [b"a", b"none", b"none", b"much too long", b"much too long"]
    assert [remembered[word] for word in (b"b", b"c", b"d")] == [b"B", b"C", b"D"]
    assert dict(remembered) == {b"d": b"D"}
