"""Frames of a session: the examples of docs/session.md, any division of the bytes, bad ones."""

import re
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from process.session_requests import call_of
from tuff.protocol.errors import BadRequestError, RequestTooLargeError
from tuff.protocol.operations import BY_NUMBER
from tuff.protocol.session_frames import FrameReader, Kind, frame, frame_before

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/session.md").read_text("utf-8")
EXAMPLES = {
    "call 1: publish `hi` to `shop:orders`": [
        1, 1, 1, ["shop", "orders"], None, {"messages": [b"hi"]},
    ],
    "reply to call 1": [2, 1, 200, {}, None],
    "cancel of call 7": [3, 7],
    "ping": [4],
    "end without a reason": [6, None],
}  # fmt: skip


def test_the_documented_bytes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `([0-9a-f]{8}[0-9a-f ]+)` \|$", DOCUMENT, re.MULTILINE)

    assert {name: bytes.fromhex(shown) for name, shown in rows} == {
        name: frame(*elements) for name, elements in EXAMPLES.items()
    }


def test_the_documented_operations_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+ \S+)` \|$", DOCUMENT, re.MULTILINE)

    assert {int(number): line for number, line in rows} == {
        number: str(operation) for number, operation in BY_NUMBER.items()
    }


@given(st.data())
def test_any_division_of_the_bytes_gives_the_same_frames(data: st.DataObject) -> None:
    sent = list(EXAMPLES.values())
    stream = b"".join(frame(*elements) for elements in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    reader = FrameReader(frame_bytes_max=1000)

    received = [reader.feed(stream[a:b]) for a, b in pairwise([0, *cuts, len(stream)])]

    assert [elements for frames, _ in received for _, elements in frames] == sent
    assert {error for _, error in received} == {None}
    assert not reader.is_within_frame


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    frames, error = FrameReader(frame_bytes_max=1000).feed(len(data).to_bytes(4, "big") + data)

    assert (len(frames) == 1) is (error is None)


def test_a_frame_above_the_limit_is_refused_before_it_is_there() -> None:
    good = frame(Kind.PING)

    frames, error = FrameReader(frame_bytes_max=10).feed(good + (11).to_bytes(4, "big"))

    assert [elements for _, elements in frames] == [[Kind.PING]]
    assert isinstance(error, RequestTooLargeError)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 1 << 20])
def test_a_frame_whose_body_is_not_copied_has_the_same_bytes(size: int) -> None:
    fields, body = {"Tuff-Next": "00"}, bytes(size)

    before = frame_before(body, Kind.REPLY, 7, 200, fields)

    assert before + body == frame(Kind.REPLY, 7, 200, fields, body)


@pytest.mark.parametrize("value", [7, {}, [], ["1"], [True], {1: 2}, [[]], [None]], ids=repr)
def test_an_array_begins_with_its_kind(value: object) -> None:
    packed = msgpack.packb(value)
    frames, error = FrameReader(frame_bytes_max=10).feed(len(packed).to_bytes(4, "big") + packed)

    assert not frames
    assert isinstance(error, BadRequestError)


@pytest.mark.parametrize(
    "elements",
    [[1, 1], [1, -1, 1, []], [1, "1", 1, []], [1, True, 1, []], [1, *range(9)]],
    ids=repr,
)
def test_a_call_has_an_id(elements: list[object]) -> None:
    with pytest.raises(BadRequestError):
        call_of(elements)


def test_the_last_elements_of_a_call_may_be_missing() -> None:
    assert call_of([1, 5, 16, []]) == (5, [16, [], None, None, None, None])
