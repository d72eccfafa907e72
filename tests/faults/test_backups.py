"""Backups under load have everything acknowledged and nothing partial (promises 1-5)."""

from pathlib import Path

import pytest

from tests.faults.backups import BALLAST, PROBE, BackupProgram, Messages, Probe, check_beside
from tests.faults.workload_messages import Shared


@pytest.mark.slow
def test_backups_under_load_have_all_acknowledged_messages(tmp_path: Path) -> None:
    said = BackupProgram(tmp_path, clients=16, ballast=5).run(3)

    assert said.startswith("3 backups under 16 clients restored")


def messages(*numbers: int) -> list[tuple[str, str]]:
    return [(f"{number:040x}", str(number)) for number in numbers]


def check(restored: Messages, whole: Messages) -> None:
    """Four messages of ballast; the probe published five, three of them before the backup."""
    check_beside(restored, whole, ballast_count=4, probe_count=5, probe_told=3)


WHOLE = {BALLAST: messages(0, 1, 2, 3), PROBE: messages(0, 1, 2, 3, 4)}


@pytest.mark.parametrize("probed", [3, 4, 5])
def test_messages_published_during_a_backup_may_be_in_it(probed: int) -> None:
    check(WHOLE | {PROBE: WHOLE[PROBE][:probed]}, WHOLE)


@pytest.mark.parametrize(
    "spoilt",
    [
        {BALLAST: []},
        {BALLAST: messages(0, 1, 2)},
        {BALLAST: messages(0, 2, 3)},
        {BALLAST: messages(0, 1, 2, 3, 4)},
        {BALLAST: [*messages(0, 1, 2), (f"{9:040x}", "3")]},
        {PROBE: []},
        {PROBE: messages(0, 1)},
        {PROBE: messages(0, 2, 3)},
        {PROBE: messages(0, 1, 2, 4)},
    ],
)
def test_a_backup_without_an_acknowledged_message_is_found(spoilt: Messages) -> None:
    with pytest.raises(AssertionError):
        check({**WHOLE, **spoilt}, WHOLE)


@pytest.mark.parametrize("topic", [BALLAST, PROBE])
def test_a_loss_of_the_first_server_itself_is_found(topic: str) -> None:
    shorter = {**WHOLE, topic: WHOLE[topic][:-1]}

    with pytest.raises(AssertionError):
        check({**shorter, PROBE: messages(0, 1, 2)}, shorter)


def test_a_publish_counts_as_acknowledged_after_its_reply() -> None:
    probe = Probe(Shared(port=0))
    probe.waits = [(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]

    assert probe.acknowledged_count(until_s=2.4) == 1
    assert probe.acknowledged_count(until_s=2.5) == 2
