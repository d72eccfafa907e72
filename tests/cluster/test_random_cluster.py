"""Random runs of a small cluster: no acknowledged message is lost, doubled or moved."""

from pathlib import Path

import pytest

from tests.cluster.random_cluster import PUBLISHES, run_cluster


@pytest.mark.parametrize("seed", range(4))
async def test_every_acknowledged_message_is_there_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    run = await run_cluster(seed)

    # Most of them are acknowledged, and servers did end meanwhile.
    assert len(run.history.acknowledged) > PUBLISHES
    assert run.former
