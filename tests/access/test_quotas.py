"""Quotas of requests and bytes in a second."""

import pytest

from access.principals import AccessFileError, hash_of, parse
from access.quotas import Quota, Usage

FILE = f'[principals.a]\ntokens = ["sha256:{hash_of("secret")}"]\n'


def test_requests_pass_at_the_rate_of_the_quota() -> None:
    usage = Usage(Quota(requests_per_second=10))
    passed = 0
    for step in range(300):  # three seconds, a hundred requests in each
        if usage.exceeded(now_s=step / 100) is None:
            usage.take_request(1_000_000)
            passed += 1

    assert passed == 10 + 30  # a second's worth at once, and then one every 0.1 s


def test_a_large_reply_is_a_debt_that_later_requests_wait_for() -> None:
    usage = Usage(Quota(bytes_per_second=100))
    assert usage.exceeded(now_s=7.0) is None
    usage.take_request(50)
    usage.take_bytes(350)

    assert usage.exceeded(now_s=7.0) == ("bytes_per_second", 3.0)
    assert usage.exceeded(now_s=9.5) == ("bytes_per_second", 0.5)
    assert usage.exceeded(now_s=10.5) is None


def test_a_file_without_quotas_limits_nothing() -> None:
    assert parse(FILE).by_name["a"].quota == Quota()
    assert not Quota(open_transactions=5).limits_rates


@pytest.mark.parametrize(
    "line",
    [
        "requests_per_second = 0",
        "requests_per_second = true",
        "bytes_per_second = '5'",
        "bytes_per_second = inf",
        "open_transactions = 1.5",
    ],
)
def test_a_quota_that_is_no_number_is_named(line: str) -> None:
    with pytest.raises(AccessFileError, match=rf"principals\.a\.{line.split()[0]} is a"):
        parse(FILE + line)
