"""Transfers and their messages survive `kill -9` of client and server (promises 1, 4, 5, 9)."""

from pathlib import Path

import pytest

from tests.faults.bank import BankProgram


def test_after_a_kill_of_each_side_rows_and_messages_agree(
    tmp_path: Path,
) -> None:
    figures = BankProgram(tmp_path, seed=3).run(kills=1)

    assert (figures["worker_kills"], figures["server_kills"]) == (1, 1)
    assert figures["done"] > 0


@pytest.mark.slow
def test_a_dozen_kills_of_each_side_neither_make_nor_lose_money(tmp_path: Path) -> None:
    figures = BankProgram(tmp_path, seed=4).run(kills=12)

    assert (figures["worker_kills"], figures["server_kills"]) == (12, 12)
    assert figures["doubt"] > 0
    assert figures["audited"] > 5
