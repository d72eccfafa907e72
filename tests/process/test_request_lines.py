"""A request line has the same route whether it, or a line with another number, is in the cache."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from process.dispatch import RouteTree
from process.plain_requests import (
    LINE_BYTES_KEPT_MAX,
    LINES_COUNT_MAX,
    BoundedCache,
    RequestLines,
    RoutedLine,
)
from tuff.protocol.exchange import EMPTY_REPLY, Reply, Request, Route


async def _answer(_request: Request) -> Reply:
    return EMPTY_REPLY


PATHS = (
    "/v1/transactions",
    "/v1/transactions/run",
    "/v1/transactions/{tx}",
    "/v1/transactions/{tx}/commit",
    "/v1/namespaces/{ns}/topics/{t}/publish",
)
TREE = RouteTree([Route(method, path, _answer) for method in ("GET", "POST") for path in PATHS])
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
    LIKELY | st.lists(SEGMENTS, max_size=6),
    st.sampled_from(["", "", "?a=1", "?a=1480000000000000000&a=", "?/1480000000000000000/", "/"]),
)
METHODS = st.sampled_from(["GET", "POST", "PATCH"])


def _line(target: str, method: str = "POST") -> bytes:
    return f"{method} {target} HTTP/1.1".encode()


@given(st.lists(st.tuples(TARGETS, METHODS), min_size=1, max_size=12))
@example([("/v1/transactions/0/commit", "POST"), ("/v1/transactions/1480000000000000000", "POST")])
def test_a_line_has_the_same_route_whatever_is_cached(
    lines: list[tuple[str, str]],
) -> None:
    used = RequestLines(TREE)

    for target, method in lines:
        line = _line(target, method)
        assert used.find(line) == RequestLines(TREE)._read(line)
        assert used.find(line) == RequestLines(TREE)._read(line)


def test_a_line_with_a_number_has_it_as_its_parameter() -> None:
    lines = RequestLines(TREE)

    found = [lines.find(_line(f"/v1/transactions/148000000000000000{i}/commit")) for i in (1, 2)]

    operation = "POST /v1/transactions/{tx}/commit"
    assert found == [
        RoutedLine(operation, _answer, {"tx": f"148000000000000000{i}"}, ()) for i in (1, 2)
    ]


@pytest.mark.parametrize(
    "target",
    ["/v1/nothing", "/v1/transactions/1480000000000000000/nothing", "//v1", "/v1/transactions/"],
)
def test_a_line_without_a_route_is_not_plain(target: str) -> None:
    assert RequestLines(TREE).find(_line(target)) is None


def test_the_caches_of_request_lines_are_bounded() -> None:
    lines = RequestLines(TREE)

    for i in range(LINES_COUNT_MAX + 10):
        lines.find(_line(f"/v1/transactions/1{i:018}/commit"))
        lines.find(_line(f"/v1/namespaces/a/topics/t{i}/publish"))
    lines.find(_line(f"/v1/namespaces/a/topics/{'t' * LINE_BYTES_KEPT_MAX}/publish"))

    assert len(lines._numbered) == 1
    assert len(lines._whole) == 10


def test_a_value_is_computed_once_and_a_full_cache_is_emptied() -> None:
    asked: list[bytes] = []

    def answer(word: bytes) -> bytes | None:
        asked.append(word)
        return None if word == b"none" else word.upper()

    remembered = BoundedCache(answer, bytes_max=8, count_max=3)

    assert [remembered[word] for word in (b"a", b"a", b"none", b"none")] == [b"A", b"A", None, None]
    assert [remembered[b"much too long"] for _ in range(2)] == [b"MUCH TOO LONG"] * 2
    assert asked == [b"a", b"none", b"much too long", b"much too long"]
    assert [remembered[word] for word in (b"b", b"c")] == [b"B", b"C"]
    assert dict(remembered) == {b"c": b"C"}
