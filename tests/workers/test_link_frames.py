"""What a worker and the main process tell each other arrives as it was sent."""

from hypothesis import given
from hypothesis import strategies as st

from tuff.protocol.exchange import Reply, Request
from workers.link_frames import (
    CALL,
    REPLY,
    Frames,
    call_elements,
    names_in,
    pack,
    reply_frame,
    request_of,
)

# Header fields are UTF-8, or bytes that are not.
FIELD = st.none() | st.text(max_size=9) | st.just(b"\xff\x00".decode("utf-8", "surrogateescape"))
NAMES = ("ns", "t")


@given(
    st.builds(
        Request,
        parameters=st.tuples(*[st.text(max_size=5)] * 2).map(
            lambda two: dict(zip(NAMES, two, strict=True))
        ),
        query=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(tuple),
        content_type=FIELD,
        accept=FIELD,
        body=st.binary(max_size=99),
        is_forwarded=st.booleans(),
        wants_redirect=st.booleans(),
        authorization=FIELD,
        certificate=st.lists(st.text(max_size=9), max_size=2).map(tuple),
        address=st.text(max_size=9),
        traceparent=FIELD,
        upgrade=FIELD,
        caller=st.none(),
        members=st.none(),
        members_bytes=st.just(0),
    )
)
def test_a_request_arrives_as_it_was(request: Request) -> None:
    sent = pack((CALL, *call_elements(7, 3, request)))

    ((kind, call_id, route, *rest),) = Frames().feed(sent)

    assert (kind, call_id, route) == (CALL, 7, 3)
    assert request_of(rest, NAMES) == request


@given(st.binary(max_size=300), st.integers(1, 20))
def test_frames_are_found_wherever_the_bytes_are_cut(body: bytes, size: int) -> None:
    reply = Reply(201, "avro/binary", body, (("Tuff-Next", "00"),))
    sent = reply_frame(1, reply) + reply_frame(2, reply)
    frames, found = Frames(), []

    for start in range(0, len(sent), size):
        found += frames.feed(sent[start : start + size])

    fields = ["avro/binary", body, [["Tuff-Next", "00"]]]
    assert found == [[REPLY, 1, 201, *fields], [REPLY, 2, 201, *fields]]


def test_the_names_of_a_path_are_those_in_braces() -> None:
    assert names_in("/v1/namespaces/{ns}/topics/{t}/poll") == NAMES
