"""How often failed calls are recorded, and what a record shows."""

from access.audit import (
    END_TRANSACTIONS,
    FAILURE_KINDS_MAX,
    FAILURES_WINDOW_MS,
    Act,
    ActKind,
    Failures,
    changes,
)
from access.principals import hash_of, parse

WINDOW_MS = FAILURES_WINDOW_MS


def refusal(at_ms: int, *, principal: str | None = None, topic: str = "t") -> Act:
    return Act(
        kind=ActKind.REFUSAL,
        at_ms=at_ms,
        principal=principal,
        operation="GET x",
        parameters={"t": topic},
        result="forbidden",
        address="10.0.0.1",
    )


def test_the_first_of_a_kind_is_recorded_at_once_and_the_others_at_the_end_of_the_window() -> None:
    failures = Failures(now_ms=0)

    assert failures.note(refusal(1)) == refusal(1)
    assert [failures.note(refusal(at_ms)) for at_ms in (2, 3)] == [None, None]
    assert failures.ended(now_ms=WINDOW_MS - 1) == ()
    (rest,) = failures.ended(now_ms=WINDOW_MS)

    assert (rest.at_ms, rest.count, rest.operation) == (2, 2, "GET x")
    assert failures.note(refusal(WINDOW_MS + 1)) is not None


def test_a_client_that_changes_each_call_makes_no_more_messages_than_the_bound() -> None:
    failures = Failures(now_ms=0)

    written = [failures.note(refusal(1, topic=str(number))) for number in range(10_000)]
    rest = failures.rest()

    assert len([each for each in written if each is not None]) == FAILURE_KINDS_MAX
    assert [(each.operation, each.parameters, each.count) for each in rest] == [
        (None, {}, 10_000 - FAILURE_KINDS_MAX)
    ]


def test_one_principal_does_not_hide_the_refusals_of_another() -> None:
    failures = Failures(now_ms=0)
    for number in range(100):
        failures.note(refusal(1, topic=str(number)))

    assert failures.note(refusal(2, principal="alice")) is not None


def test_a_clock_that_is_set_back_ends_the_window() -> None:
    failures = Failures(now_ms=WINDOW_MS)
    failures.note(refusal(WINDOW_MS))
    failures.note(refusal(WINDOW_MS))

    assert [each.count for each in failures.ended(now_ms=0)] == [1]


def test_a_record_is_bounded_and_shows_no_text_of_the_client_but_names() -> None:
    form = Act(
        kind=ActKind.REFUSAL, at_ms=1, parameters={"t": "x" * 10_000}, traceparent="a secret"
    ).body()

    assert form["traceparent"] is None
    assert form["parameters"] == {"t": "x" * 128 + "…"}


def test_changes_of_an_access_file_name_principals_and_rights_and_no_hash() -> None:
    def principals(a: str, quota: str = "", allow: str = "read") -> str:
        return (
            f'[principals.a]\ntokens = ["sha256:{hash_of(a)}"]\n{quota}\n'
            f'[[principals.a.rights]]\nnamespace = "shop"\nallow = ["{allow}"]\n'
        )

    old = parse(principals("1"))
    new = parse(
        principals("2", 'requests_per_second = 5\ntenant = "acme"', "publish")
        + '[principals.b]\ncertificates = ["b.example"]\n'
    )

    assert list(changes(old, old)) == []
    assert list(changes(old, new)) == [
        "tokens of a: 1 added, 1 removed",
        "a lost read on shop:*",
        "a got publish on shop:*",
        "the quotas of a were changed",
        "the tenant of a was none, and is acme",
        "principal b was added",
    ]
    assert list(changes(new, old))[-1] == "principal b was removed"


def test_the_calls_that_end_a_transaction() -> None:
    ends = ("abort", "invalidate", "commit", "prepare", "resolve")

    assert set(map(str, END_TRANSACTIONS)) == {f"POST /v1/transactions/{{tx}}/{e}" for e in ends}
