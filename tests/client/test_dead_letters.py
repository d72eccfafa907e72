"""The form of dead letters, and the policy of retries (decision 0043 §6)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuff
from tuff.dead_letters import Cause, DeadLetter, read_dead_letter
from tuff.errors import NotADeadLetterError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message

ORDERS = TopicId("shop", "orders")
CARRIER = MessageId(9, 9)


def letter(message: Message, **other: object) -> DeadLetter:
    return DeadLetter(topic=ORDERS, message=message, reason="no", attempts=1, **other)  # type: ignore[arg-type]  # any


def carried(sent: DeadLetter) -> Message:
    """The dead letter as a consumer of its topic receives it."""
    made = sent.publishable()
    return Message(CARRIER, made.payload, sent.message.key, sent.message.tags, sent.message.headers)


@given(
    payload=st.binary(max_size=40),
    topic=st.sampled_from([ORDERS, ORDERS.partition(3)]),
    reason=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    group=st.none() | st.just("billing"),
    attempts=st.integers(1, 100),
)
def test_a_dead_letter_reads_as_it_was(
    payload: bytes, topic: TopicId, reason: str, group: str | None, attempts: int
) -> None:
    message = Message(MessageId(1, 2), payload, b"k", ("t",), (("h", b"v"),))
    sent = DeadLetter(topic=topic, message=message, reason=reason, attempts=attempts, group=group)

    assert read_dead_letter(carried(sent)) == sent
    raw = replace(sent, is_raw=True)
    assert read_dead_letter(carried(raw)) == raw
    assert read_dead_letter(carried(sent.without_payload())) == sent.without_payload()


def test_a_dead_letter_is_utf_8_whatever_its_reason_contains() -> None:
    sent = letter(Message(MessageId(1, 2), "café".encode())).with_failure(Cause("no file \udcff"))

    text = sent.publishable().payload

    assert "café" in text.decode("utf-8")
    assert (json.loads(text)["reason"], json.loads(text)["attempts"]) == ("no file \\udcff", 2)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": 1}, {"topic": "shop"}, {"topic": "shop:orders:delayed"}, {"id": "00"},
        {"id": None}, {"payload": 1}, {"payload": {"base64": "!"}}, {"attempts": "1"},
        {"attempts": True}, {"reason": None}, {"group": 1}, {"size": "1"},
    ],
)  # fmt: skip
def test_another_form_is_no_dead_letter(change: dict[str, object]) -> None:
    form = json.loads(letter(Message(MessageId(1, 2), b"x")).publishable().payload)

    with pytest.raises(NotADeadLetterError, match=CARRIER.hex()):
        read_dead_letter(Message(CARRIER, json.dumps(form | change).encode()))


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"\xff", b"1", b"[" * 10_000])
def test_any_other_payload_is_no_dead_letter(payload: bytes) -> None:
    """It said "TypeError: 'int' object is not subscriptable"."""
    why = "it has no member 'topic'" if payload == b"{}" else "its payload is no JSON object"
    with pytest.raises(NotADeadLetterError, match=f"is no dead letter: {why}$"):
        read_dead_letter(Message(CARRIER, payload))


def test_a_policy_has_an_attempt_more_than_delays() -> None:
    policy = tuff.RetryPolicy(delays=(1, 20))

    assert [policy.delay_s(attempts) for attempts in (1, 2, 3)] == [1, 20, None]
    assert tuff.RetryPolicy(delays=()).delay_s(1) is None


@pytest.mark.parametrize("delays", [(-1,), (1e9,), (1,) * 101, (float("nan"),)])
def test_impossible_delays_are_refused(delays: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="delay"):
        tuff.RetryPolicy(delays=delays)


@pytest.mark.parametrize("delays", ["10", 10, ("10",)])
def test_delays_of_the_wrong_type_are_refused(delays: object) -> None:
    with pytest.raises(TypeError, match="delay"):
        tuff.RetryPolicy(delays=delays)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize("behind", [b"", b"12", b"1234"])
def test_a_payload_of_another_length_than_the_letter_says_is_no_dead_letter(behind: bytes) -> None:
    sent = letter(Message(MessageId(1, 2), b"123"), is_raw=True)
    head = sent.publishable().payload.partition(b"\n")[0]

    with pytest.raises(NotADeadLetterError):
        read_dead_letter(Message(CARRIER, head + b"\n" + behind))
