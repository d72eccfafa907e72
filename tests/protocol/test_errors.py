"""Errors: one class per code on both sides of the wire (protocol §1, Errors)."""

import pytest

from tuff.protocol.errors import (
    BY_CODE,
    OverloadedError,
    TransactionConflictError,
    TransactionError,
    TransactionNotInProgressError,
    TransactionTimedOutError,
    TuffError,
    from_problem,
)

STATUS_OF_CODE = {
    "bad_request": 400,
    "future_position": 400,
    "invalid_name": 400,
    "invalid_topic_properties": 400,
    "partition_required": 400,
    "invalid_ttl": 400,
    "invalid_delay": 400,
    "empty_publish": 400,
    "invalid_message_id": 400,
    "invalid_timeout": 400,
    "invalid_transaction": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "host_not_allowed": 403,
    "cross_site_request": 403,
    "topic_not_found": 404,
    "hold_not_found": 404,
    "position_not_found": 404,
    "delayed_not_found": 404,
    "sink_not_found": 404,
    "server_not_found": 404,
    "group_not_found": 404,
    "transaction_unknown": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "upgrade_required": 426,
    "not_acceptable": 406,
    "topic_already_exists": 409,
    "group_already_exists": 409,
    "lease_lost": 409,
    "partition_retired": 409,
    "topic_held": 409,
    "topic_not_movable": 409,
    "too_many_groups": 409,
    "too_many_holds": 409,
    "too_many_positions": 409,
    "transaction_conflict": 409,
    "transaction_timed_out": 409,
    "transaction_invalidated": 409,
    "transaction_committed": 409,
    "transaction_aborted": 409,
    "transactions_in_progress": 409,
    "start_withdrawn": 409,
    "request_forgotten": 409,
    "request_id_reused": 409,
    "transaction_prepared": 409,
    "transaction_not_prepared": 409,
    "sink_in_use": 409,
    "sink_epoch_superseded": 409,
    "sink_epoch_open": 409,
    "sink_fenced": 409,
    "too_many_sinks": 409,
    "unknown_member": 409,
    "fenced_member_epoch": 409,
    "unreleased_instance_id": 409,
    "stale_member_epoch": 409,
    "partition_not_assigned": 409,
    "group_not_empty": 409,
    "too_many_members": 409,
    "request_too_large": 413,
    "change_set_too_large": 413,
    "unsupported_media_type": 415,
    "overloaded": 429,
    "quota_exceeded": 429,
    "internal": 500,
    "damaged_record": 500,
    "transactions_unavailable": 503,
    "too_many_prepared": 503,
    "storage_unavailable": 503,
    "storage_outcome_unknown": 503,
    "archive_unavailable": 503,
    "shutting_down": 503,
    "starting": 503,
    "ownership_moving": 503,
}


def test_every_code_of_the_protocol_has_a_class_with_its_status() -> None:
    assert {code: kind.status for code, kind in BY_CODE.items()} == STATUS_OF_CODE


@pytest.mark.parametrize("code", sorted(STATUS_OF_CODE))
def test_an_error_arrives_as_the_class_that_was_raised(code: str) -> None:
    raised = BY_CODE[code]("what was wrong", members={"key": "k", "next": None})

    arrived = from_problem(raised.problem(), status=raised.status)

    assert type(arrived) is type(raised)
    assert arrived.problem() == raised.problem()
    assert (arrived.detail, arrived.members) == ("what was wrong", {"key": "k", "next": None})


def test_a_problem_document_has_the_members_of_its_standard_and_the_code() -> None:
    error = TransactionConflictError(
        "key 'a' was committed by transaction 17", members={"conflictingTransaction": "17"}
    )

    assert error.problem() == {
        "type": "about:blank",
        "title": "Transaction conflict",
        "status": 409,
        "detail": "key 'a' was committed by transaction 17",
        "code": "transaction_conflict",
        "conflictingTransaction": "17",
    }


def test_a_code_of_a_later_version_becomes_the_root_class_with_that_code() -> None:
    error = from_problem({"code": "too_cold", "detail": "it is too cold"}, status=409)

    assert type(error) is TuffError
    assert (error.code, error.detail, error.retry_safe) == ("too_cold", "it is too cold", False)


@pytest.mark.parametrize("body", [{}, {"code": 7, "detail": ["x"]}])
def test_a_body_that_is_no_problem_document_still_makes_an_error(body: dict[str, object]) -> None:
    error = from_problem(body, status=502)

    assert type(error).__mro__[-4:-2] == (TuffError, Exception)
    assert error.detail == "the server answered 502 without a reason; check the address"
    assert error.code == "internal"


def test_a_caller_can_catch_all_endings_of_a_transaction_at_once() -> None:
    with pytest.raises(TransactionNotInProgressError) as caught:
        raise TransactionTimedOutError("transaction 17 timed out")

    assert isinstance(caught.value, TransactionError)
    assert str(caught.value) == "transaction 17 timed out"


def test_trying_again_is_safe_only_where_the_server_did_nothing() -> None:
    safe = {code for code, kind in BY_CODE.items() if kind.retry_safe}

    assert safe == {
        "overloaded", "ownership_moving", "quota_exceeded", "shutting_down", "starting",
        "storage_unavailable", "too_many_prepared",
    }  # fmt: skip
    assert OverloadedError("full").retry_safe
