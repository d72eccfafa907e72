"""What becomes of a transaction of two participants when their hooks fail (design §7).

Each row is a history against a real server, run by both drivers: with an exception, and with what
comes from outside: an interrupt in a thread, cancellation in a task.
"""

import asyncio
from collections.abc import Callable

import pytest

import tuff
from tests.client.recording import AsyncParticipant, Participant, Record
from tests.http.process import ServerProcess

# s start_tx   t tx_changes   c commit_tx   p post_commit   r rollback_tx
MATRIX = """
    what fails                            on a     on b     ends as    raised         notes

    nothing                               s t c p  s t c p  committed  -              -
    body                                  s r      s r      aborted    body           -
    conflict                              s t r    s t r    aborted    conflict       -

    a.start_tx                            s        -        aborted    a.start_tx     -
    b.start_tx                            s        s        aborted    b.start_tx     -
    a.tx_changes                          s t r    s r      aborted    a.tx_changes   -
    b.tx_changes                          s t r    s t r    aborted    b.tx_changes   -
    a.commit_tx                           s t c r  s t r    aborted    a.commit_tx    -
    b.commit_tx                           s t c r  s t c r  aborted    b.commit_tx    -
    a.post_commit                         s t c p  s t c p  committed  a.post_commit  -
    b.post_commit                         s t c p  s t c p  committed  b.post_commit  -

    body & a.rollback_tx                  s r      s r      invalid    body           a.rollback_tx
    body & b.rollback_tx                  s r      s r      invalid    body           b.rollback_tx
    body & a.rollback_tx & b.rollback_tx  s r      s r      invalid    body           a.rollback_tx & b.rollback_tx
    conflict & a.rollback_tx              s t r    s t r    invalid    conflict       a.rollback_tx
    conflict & b.rollback_tx              s t r    s t r    invalid    conflict       b.rollback_tx

    a.start_tx & a.rollback_tx            s        -        aborted    a.start_tx     -
    b.start_tx & a.rollback_tx            s        s        aborted    b.start_tx     -
    a.tx_changes & a.rollback_tx          s t r    s r      invalid    a.tx_changes   a.rollback_tx
    a.tx_changes & b.rollback_tx          s t r    s r      invalid    a.tx_changes   b.rollback_tx
    b.tx_changes & a.rollback_tx          s t r    s t r    invalid    b.tx_changes   a.rollback_tx
    b.tx_changes & b.rollback_tx          s t r    s t r    invalid    b.tx_changes   b.rollback_tx
    a.commit_tx & a.rollback_tx           s t c r  s t r    invalid    a.commit_tx    a.rollback_tx
    a.commit_tx & b.rollback_tx           s t c r  s t r    invalid    a.commit_tx    b.rollback_tx
    b.commit_tx & a.rollback_tx           s t c r  s t c r  invalid    b.commit_tx    a.rollback_tx
    b.commit_tx & b.rollback_tx           s t c r  s t c r  invalid    b.commit_tx    b.rollback_tx

    a.post_commit & a.rollback_tx         s t c p  s t c p  committed  a.post_commit  -
    a.post_commit & b.post_commit         s t c p  s t c p  committed  a.post_commit  b.post_commit
"""  # noqa: E501 - a table is read across

SHORT = {"s": "start_tx", "t": "tx_changes", "c": "commit_tx", "p": "post_commit",
         "r": "rollback_tx"}  # fmt: skip

_HEAD, *_LINES = [line for line in MATRIX.splitlines() if line.strip()]
_COLUMNS = ("what fails", "on a", "on b", "ends as", "raised", "notes")
_STARTS = [_HEAD.index(name) for name in _COLUMNS]
ROWS = [
    tuple(
        line[start:stop].strip() for start, stop in zip(_STARTS, [*_STARTS[1:], None], strict=True)
    )
    for line in _LINES
]


def several(text: str) -> list[str]:
    return [] if text in {"-", "nothing"} else text.split(" & ")


def hooks(name: str, text: str) -> list[str]:
    return [] if text == "-" else [f"{name}.{SHORT[letter]}" for letter in text.split()]


class Story:
    """One run of a row: what was asked of whom, and what came out of it."""

    def __init__(self, url: str, failing: list[str], kind: type[BaseException]) -> None:
        self.url = url
        self.record = Record()
        self.record.fail = {step: kind(step) for step in failing}
        self.is_conflicting = "conflict" in failing

    def work(self, tx: tuff.TransactionContext | tuff.AsyncTransactionContext) -> None:
        """The block: it lets another commit the same change, or fails."""
        if self.is_conflicting:
            with tuff.Client(self.url) as other:
                other.transactions.commit(other.transactions.start(), changes=[b"x"])
        self.record.note("body")


def blocking(story: Story) -> BaseException | None:
    with tuff.Client(story.url) as client:
        participants = [Participant(name, story.record, changes=[b"x"]) for name in "ab"]
        try:
            with client.transaction(*participants) as tx:
                story.work(tx)
        except BaseException as error:  # noqa: BLE001 - what a row expects, interrupts too
            return error
        return None


def on_a_loop(story: Story) -> BaseException | None:
    async def main() -> BaseException | None:
        async with tuff.AsyncClient(story.url) as client:
            participants = [AsyncParticipant(name, story.record, changes=[b"x"]) for name in "ab"]
            try:
                async with client.transaction(*participants) as tx:
                    story.work(tx)
            except BaseException as error:  # noqa: BLE001 - what a row expects, cancellation too
                return error
            return None

    return asyncio.run(main())


Run = Callable[[Story], BaseException | None]
RUNS = [
    pytest.param(blocking, RuntimeError, id="blocking"),
    pytest.param(blocking, KeyboardInterrupt, id="interrupted"),
    pytest.param(on_a_loop, RuntimeError, id="asyncio"),
    pytest.param(on_a_loop, asyncio.CancelledError, id="cancelled"),
]


@pytest.mark.parametrize(("run", "kind"), RUNS)
@pytest.mark.parametrize(
    ("failing", "on_a", "on_b", "ends_as", "raised", "notes"), ROWS, ids=[row[0] for row in ROWS]
)
def test_a_failing_hook(
    server: ServerProcess,
    client: tuff.Client,
    failing: str,
    on_a: str,
    on_b: str,
    ends_as: str,
    raised: str,
    notes: str,
    run: Run,
    kind: type[BaseException],
) -> None:
    story = Story(server.url, several(failing), kind)

    error = run(story)

    steps = story.record.steps
    assert [step for step in steps if step.startswith("a.")] == hooks("a", on_a)
    assert [step for step in steps if step.startswith("b.")] == hooks("b", on_b)
    assert described(error) == raised
    noted = [f"and then: {kind.__name__}: {note}" for note in several(notes)]
    assert getattr(error, "__notes__", []) == noted
    assert client.transactions.get(story.record.pointer).state == ends_as


def described(error: BaseException | None) -> str:
    if error is None:
        return "-"
    return "conflict" if isinstance(error, tuff.TransactionConflictError) else str(error)
