"""A short run of `tests.faults.groups` in each mode, and what its judge refuses."""

from pathlib import Path

import pytest

from tests.faults.groups import INPUT, Done, Run, judge, kill_members
from tuff.consumer_options import DeliveryMode
from tuff.dead_letters import DeadLetter
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Message

EXACTLY, AT_LEAST, AT_MOST = (
    DeliveryMode.EXACTLY_ONCE,
    DeliveryMode.AT_LEAST_ONCE,
    DeliveryMode.AT_MOST_ONCE,
)


@pytest.mark.parametrize(
    "mode",
    [
        EXACTLY,
        pytest.param(AT_LEAST, marks=pytest.mark.slow),
        pytest.param(AT_MOST, marks=pytest.mark.slow),
    ],
)
def test_killed_members_break_no_promise(mode: DeliveryMode, tmp_path: Path) -> None:
    run = kill_members(
        mode, count=3, partitions=6, kills=1, pauses=1, seed=1, home=tmp_path, publish_every_s=0.1
    )

    assert judge(run, mode) == []
    assert (len(run.killed), len(run.rebalanced_s)) == (1, 1)
    assert run.published > 50


def test_the_judge_finds_a_message_that_was_given_up_early_or_twice_or_not() -> None:
    letters = [letter(27, 6), letter(27, 2), letter(27, 6), letter(13, 6)]
    done = [Done(number=each, member="a", batch=each) for each in range(100) if each % 50 != 27]

    wrong = judge(Run(published=100, done=done, given_up=letters), EXACTLY)

    assert wrong == [
        "27 was given up after 6 attempts",
        "27 was given up after 2 attempts",
        "13 was given up after 6 attempts",
        "77 was not given up",
    ]


def letter(number: int, attempts: int) -> DeadLetter:
    message = Message(MessageId(1, number), b"%d" % number)
    return DeadLetter(topic=INPUT, message=message, reason="no", attempts=attempts)


def of(*done: tuple[int, str, int]) -> Run:
    """Two messages, of which members processed these, in these batches; member `a` was killed."""
    outputs = [Done(number=number, member=member, batch=batch) for number, member, batch in done]
    return Run(published=2, done=outputs, killed=["a"])


@pytest.mark.parametrize(
    ("run", "wrong"),
    [
        (of((0, "a", 0), (1, "a", 0)), []),
        (of((0, "a", 0)), [EXACTLY, AT_LEAST]),
        (of((0, "a", 0), (1, "a", 0), (2, "a", 0)), [EXACTLY, AT_LEAST, AT_MOST]),
        # Of the last batch of a killed member, of an earlier one, and of one that lives.
        (of((0, "a", 0), (1, "b", 0), (0, "b", 1)), [EXACTLY, AT_MOST]),
        (of((0, "a", 0), (1, "a", 1), (0, "b", 1)), [EXACTLY, AT_LEAST, AT_MOST]),
        (of((0, "b", 0), (1, "b", 0), (0, "c", 0)), [EXACTLY, AT_LEAST, AT_MOST]),
    ],
)
def test_the_judge_finds_what_a_mode_excludes(run: Run, wrong: list[DeliveryMode]) -> None:
    assert [mode for mode in (EXACTLY, AT_LEAST, AT_MOST) if judge(run, mode)] == wrong
