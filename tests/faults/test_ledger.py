"""The ledger itself: it must see each kind of loss, or the kills prove nothing."""

import pytest

from tests.faults.ledger import Fate, Unit, check_committed, check_prefix


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


@pytest.mark.parametrize("after", [[], [A], [B, A], [A, C, B], [C, A, B], [A, C]])
def test_a_changed_prefix_is_seen(after: list[tuple[str, str]]) -> None:
    check_prefix({"t": [A, B]}, {"t": [A, B, C]})
    with pytest.raises(AssertionError):
        check_prefix({"t": [A, B]}, {"t": after})
