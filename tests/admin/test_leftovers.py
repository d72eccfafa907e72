"""Transaction files that a replaced leader made too late, for `tuff fsck` and `tuff salvage`."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from admin.transaction_files import TransactionFiles
from tests.tx.service import Service
from tx.log_records import Committed


@dataclass
class Leads:
    """The leadership of a server that nobody replaces, as far as it knows."""

    epoch: int

    def require(self) -> None:
        return


async def commit(service: Service) -> int:
    opened = await service.begin()
    await service.runner.commit(opened.transaction_id, changes=[])
    return opened.transaction_id


async def test_files_of_a_replaced_leader_are_reported_as_harmless_and_not_salvaged(
    tmp_path: Path,
) -> None:
    directory, elsewhere = tmp_path / "tx", tmp_path / "elsewhere"
    old = await Service(directory, leadership=Leads(1)).open()
    before = await commit(old)
    await old.kill()
    shutil.copytree(directory, elsewhere)
    stale = await Service(elsewhere, leadership=Leads(1)).open()
    await commit(stale)
    await stale.manager.take_snapshot()
    await stale.kill()
    new = await Service(directory, leadership=Leads(2)).open()
    after = await commit(new)
    await new.kill()
    added = [path for path in elsewhere.iterdir() if not (directory / path.name).exists()]
    for path in added:
        shutil.copy(path, directory)

    report = TransactionFiles(directory).check(None)
    readable = TransactionFiles(directory).readable_edits()

    assert len(added) == 4
    assert sorted(finding.location for finding in report.findings) == sorted(
        f"tx/{path.name}" for path in added
    )
    assert not any(finding.is_corruption for finding in report.findings)
    assert report.state is not None
    assert {outcome.transaction_id for outcome in report.state.outcomes} == {before, after}
    committed = [edit for edit in readable.edits.values() if isinstance(edit, Committed)]
    assert [edit.transaction_id for edit in committed] == [before, after]
