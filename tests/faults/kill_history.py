"""What the clients of a killed server did and were shown, as the checker takes it."""

from collections.abc import Sequence
from dataclasses import replace

from tests.faults.checker_history import Attempt, Outcome, Poll, Publish, View
from tests.faults.ledger import Fate, Unit
from tests.http.client import Reply


def noted(topic: str, view: View, after: str, reply: Reply) -> Poll:
    """A poll as the history has it."""
    return Poll(
        topic=topic,
        view=view,
        found=tuple((message["id"], message["payload"]) for message in reply.json),
        after=after,
        until=str(reply.header("Tuff-Next")),
        at_end=reply.header("Tuff-Caught-Up") == "true",
    )


def attempted(unit: Unit) -> Attempt:
    """A resolved unit as the history has it."""
    outcomes = {Fate.SEEN: Outcome.OK, Fate.HIDDEN: Outcome.FAIL, Fate.MAYBE: Outcome.UNKNOWN}
    publishes = [
        Publish(topic=topic, values=sent, invoked=unit.invoked, completed=unit.completed)
        for topic, sent in unit.requests
    ]
    return Attempt(
        client=str(unit.client),
        invoked=unit.invoked,
        completed=unit.completed,
        outcome=outcomes[unit.fate],
        actions=(*unit.polls, *publishes),
        is_transaction=unit.pointer is not None or unit.body is not None,
    )


def without_lost_copies(history: Sequence[Attempt], repeated: Sequence[Unit]) -> list[Attempt]:
    """The history with values that are there once.

    The rows of a run that a crash cut off stay, for who reads all rows, beside those of its
    repetition: these are the work of two transactions, of which the first did not commit.
    """
    told = {
        value: ids
        for unit in repeated
        for (_, sent), ids in zip(unit.requests, unit.ids, strict=True)
        for value in sent
    }
    lost: dict[str, list[str]] = {}

    def renamed(topic: str, message_id: str, value: str) -> tuple[str, str]:
        first, last = told.get(value, ("", "~"))
        if first <= message_id <= last:
            return message_id, value
        copy = f"{value} of a run that was cut off"
        if copy not in lost.setdefault(topic, []):
            lost[topic].append(copy)
        return message_id, copy

    def cleaned(attempt: Attempt) -> Attempt:
        polls = tuple(
            replace(one, found=tuple(renamed(one.topic, *each) for each in one.found))
            if isinstance(one, Poll) and one.view is View.ALL
            else one
            for one in attempt.actions
        )
        return replace(attempt, actions=polls)

    whole = [cleaned(attempt) for attempt in history]
    return [*whole, *(_cut_off(topic, copy) for topic, copies in lost.items() for copy in copies)]


def _cut_off(topic: str, copy: str) -> Attempt:
    return Attempt(
        client="cut off",
        invoked=0,
        completed=None,
        outcome=Outcome.FAIL,
        actions=(Publish(topic=topic, values=(copy,), invoked=0),),
    )
