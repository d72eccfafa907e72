"""The ledger itself: it must see each kind of loss, or the kills prove nothing."""

import pytest

from tests.faults.ledger import Fate, Unit, check_committed, check_prefix, unsure_of


def unit(fate: Fate, *sent: str) -> Unit:
    return Unit(client=1, number=0, fate=fate, requests=(("t", sent),))


A, B, C = ("01", "1.0.0.0"), ("02", "1.0.0.1"), ("03", "1.1.0.0")
BOTH = (A[1], B[1])


def test_a_whole_account_passes() -> None:
    check_committed([unit(Fate.SEEN, *BOTH)], {"t": [A, B]})
    check_committed([unit(Fate.MAYBE, *BOTH)], {"t": [A, B]})
    check_committed([unit(Fate.MAYBE, *BOTH)], {"t": []})
    check_committed([unit(Fate.HIDDEN, *BOTH)], {"t": []})


@pytest.mark.parametrize(
    ("fate", "view"),
    [
        (Fate.SEEN, []), (Fate.SEEN, [A]), (Fate.SEEN, [A, B, ("04", A[1])]),
        (Fate.SEEN, [A, C, B]), (Fate.SEEN, [("01", B[1]), ("02", A[1])]),
        (Fate.SEEN, [("02", A[1]), ("01", B[1])]), (Fate.SEEN, [A, B, C]),
        (Fate.HIDDEN, [A]), (Fate.HIDDEN, [A, B]), (Fate.MAYBE, [A]), (Fate.ASK, []),
        (Fate.REPEAT, []),
    ],
)  # fmt: skip
def test_each_kind_of_loss_is_seen(fate: Fate, view: list[tuple[str, str]]) -> None:
    with pytest.raises(AssertionError):
        check_committed([unit(fate, *BOTH)], {"t": view})


def test_clients_keep_their_order() -> None:
    second = Unit(client=1, number=1, fate=Fate.SEEN, requests=(("t", (C[1],)),))

    check_committed([unit(Fate.SEEN, A[1]), second], {"t": [A, C]})
    with pytest.raises(AssertionError):
        check_committed([unit(Fate.SEEN, A[1]), second], {"t": [("01", C[1]), ("02", A[1])]})


FIRST = Unit(client=1, number=1, fate=Fate.SEEN, requests=(("t", ("1.1.0.0",)),))
SECOND = Unit(client=1, number=2, fate=Fate.SEEN, requests=(("t", ("1.2.0.0",)),))
THIRD = Unit(client=1, number=3, fate=Fate.SEEN, requests=(("t", ("1.3.0.0",)),))


def in_this_order(*units: Unit) -> dict[str, list[tuple[str, str]]]:
    return {"t": [(f"{at:02}", unit.requests[0][1][0]) for at, unit in enumerate(units)]}


def test_what_a_client_was_not_told_of_in_time_may_stand_behind_what_it_did_then() -> None:
    units = [FIRST, SECOND, THIRD]

    for order in (FIRST, SECOND, THIRD), (FIRST, THIRD, SECOND):
        check_committed(units, in_this_order(*order), unsure={SECOND.name})


@pytest.mark.parametrize(
    ("order", "unsure"),
    [
        ((SECOND, FIRST, THIRD), SECOND), ((THIRD, FIRST, SECOND), SECOND),
        ((THIRD, FIRST, SECOND), FIRST), ((FIRST, THIRD, SECOND), FIRST),
    ],
)  # fmt: skip
def test_what_a_client_was_told_of_in_time_keeps_its_order(
    order: tuple[Unit, ...], unsure: Unit
) -> None:
    with pytest.raises(AssertionError, match="out of order"):
        check_committed([FIRST, SECOND, THIRD], in_this_order(*order), unsure={unsure.name})


BOTH_TOPICS = (("t", BOTH), ("s", ("1.0.1.0",)))


def test_what_may_be_there_is_on_all_of_its_topics_or_on_none() -> None:
    run = Unit(client=1, number=0, fate=Fate.MAYBE, requests=BOTH_TOPICS)
    here, there = [A, B], [("01", "1.0.1.0")]

    check_committed([run], {"t": here, "s": there})
    check_committed([run], {"t": [], "s": []})
    for torn in {"t": here, "s": []}, {"t": here}, {"t": [], "s": there}:
        with pytest.raises(AssertionError, match="some of its topics"):
            check_committed([run], torn)


def test_who_was_not_told_an_end_is_unsure() -> None:
    assert unsure_of([unit(fate, A[1]) for fate in (Fate.SEEN, Fate.HIDDEN)]) == set()
    assert unsure_of([unit(Fate.ASK, A[1])]) == {"1.0"}


@pytest.mark.parametrize("after", [[], [A], [B, A], [A, C, B], [C, A, B], [A, C]])
def test_a_changed_prefix_is_seen(after: list[tuple[str, str]]) -> None:
    check_prefix({"t": [A, B]}, {"t": [A, B, C]})
    with pytest.raises(AssertionError):
        check_prefix({"t": [A, B]}, {"t": after})
