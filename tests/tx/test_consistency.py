"""Transaction files whose checksums are right and whose records contradict each other.

Whatever is forged, there are two outcomes: a service that runs, or one that is down with a reason
that names the file and the place. Nothing raises, and neither do `fsck` and `salvage`.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admin.salvage_transactions import (
    complete_state,
    prove_state,
)
from admin.transaction_files import TransactionFiles, write_transaction_files
from tests.tx.service import NOW_MS, STORE_ID, Rows, Service, entry
from tests.tx.sinks import begin as begin_epoch
from tuff.protocol.errors import TransactionConflictError
from tuff.protocol.transaction import TransactionType
from tx.consistency import POINTERS_MAX, contradiction
from tx.durable_state import ServiceState
from tx.file_headers import (
    ContradictionError,
    FileHeader,
    FileKind,
    KnownFile,
    known_file,
    list_files,
    pack_header,
)
from tx.log_records import (
    Aborted,
    BlockReserved,
    Checkpointed,
    Committed,
    Confirmed,
    Edit,
    InDoubt,
    Invalidated,
    PointerRange,
    Restarted,
    SinkForgotten,
    Started,
)
from tx.outcomes import EndedState
from tx.recovery import recover
from tx.settings import TransactionSettings
from tx.snapshot_file import pack_snapshot, read_snapshot
from tx.state import Sink, StateImage, TransactionState, ViewChange, fresh_image
from tx.wal import pack_edits, pack_proof, read_log

Edits = list[tuple[int, Edit]]
SETTINGS = TransactionSettings(snapshot_retain=100)


async def make_history(directory: Path) -> None:
    """Every kind of edit, over two lives."""
    service = await Service(directory, SETTINGS).open()
    manager = service.manager
    first, rival, long = [
        await service.begin(kind)
        for kind in (TransactionType.SHORT, TransactionType.SHORT, TransactionType.LONG)
    ]
    await manager.runner.checkpoint(first.transaction_id)
    await manager.runner.can_commit(first.transaction_id, [b"k"])
    await manager.runner.commit(first.transaction_id, publish=[entry(b"a")])
    with pytest.raises(TransactionConflictError):
        await manager.runner.can_commit(rival.transaction_id, [b"k"])
    await manager.runner.abort(rival.transaction_id)
    await manager.runner.abort(long.transaction_id)
    await manager.invalid_list.truncate(pointers=[long.transaction_id])
    leased = await service.begin(TransactionType.LONG, lease_s=60)
    undone = await service.begin()
    await manager.runner.invalidate(undone.transaction_id)
    await manager.runner.abort(undone.transaction_id)
    begun = await begin_epoch(service, 0, "one")
    await manager.runner.commit(begun.transaction_id)
    await begin_epoch(service, 1, "one")
    service = await service.crash()
    await service.runner.commit(leased.transaction_id)
    still = await service.begin()
    await service.runner.checkpoint(still.transaction_id)
    done = await begin_epoch(service, 1, "another")
    await service.runner.commit(done.transaction_id)
    await service.sinks.forget("s")
    await service.begin()
    await service.later(10)
    await service.kill()


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("past")
    asyncio.run(make_history(directory))
    return directory


def edits_in(directory: Path) -> Edits:
    logs = [known_file(*each) for each in list_files(directory) if each[1] is FileKind.LOG]
    edits: Edits = []
    for log in sorted(logs, key=lambda known: known.header.sequence):
        data = log.path.read_bytes()
        edits += read_log(log.path.name, data).edits
    return edits


def first_image(directory: Path) -> StateImage:
    snapshots = [known_file(*each) for each in list_files(directory)]
    first = min(snapshots, key=lambda known: known.header.sequence)
    return read_snapshot(first.path.name, first.path.read_bytes())[1]


def header(sequence: int, lsn: int) -> FileHeader:
    return FileHeader(sequence=sequence, store_id=STORE_ID, created_ms=NOW_MS, lsn=lsn)


def put(directory: Path, image: StateImage, edits: Sequence[Edit]) -> Path:
    """One snapshot and one log, with every checksum and every number as they should be."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / "snapshot.1").write_bytes(pack_snapshot(header(1, image.lsn), image))
    data = pack_header(FileKind.LOG, header(2, image.lsn + 1))
    data += pack_edits(enumerate(edits, start=image.lsn + 1))
    data += pack_proof(STORE_ID, offset=len(data), length=len(data))
    (directory / "txlog.2").write_bytes(data)
    return directory


async def outcome_of(directory: Path) -> tuple[ServiceState, str]:
    service = await Service(directory, SETTINGS, rows=Rows()).open()
    status = service.manager.status
    if status.state is ServiceState.RUNNING:
        await service.begin()
        await service.manager.take_snapshot()
    await service.kill()
    return status.state, status.reason


def judge(directory: Path) -> str | None:
    """The one reason of all who read the files, None where they recover; nothing may raise."""
    account = TransactionFiles(directory).check(None)
    damages = [finding for finding in account.findings if finding.is_corruption]
    proven = prove_state(directory, None)
    repaired = directory.with_name("repaired")
    shutil.rmtree(repaired, ignore_errors=True)
    image = complete_state(proven, now_ms=NOW_MS)
    write_transaction_files(repaired, image, store_id=STORE_ID, now_ms=NOW_MS)
    assert recover(repaired, None) is not None
    state, reason = asyncio.run(outcome_of(directory))
    if state is ServiceState.RUNNING:
        assert account.state is not None
        return None
    assert state is ServiceState.DOWN
    assert account.state is None
    assert "txlog.2 is damaged at byte" in reason or "snapshot.1 is damaged at byte" in reason
    assert any(damage.reason.split("; ")[0] in reason for damage in damages), damages
    return reason


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["drop", "repeat", "swap", "move"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=3,
)


def forged(edits: Sequence[Edit], changes: Sequence[tuple[str, int, int]]) -> list[Edit]:
    found = list(edits)
    for what, one, other in changes:
        at, to = one % len(found), other % len(found)
        match what:
            case "drop":
                del found[at]
            case "repeat":
                found.insert(to, found[at])
            case "swap":
                found[at], found[to] = found[to], found[at]
            case _:
                found.insert(to, found.pop(at))
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "forged"


ONE_DIRECTORY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(ONE_DIRECTORY, max_examples=25)
@given(changes=CHANGES)
def test_edits_that_were_dropped_repeated_or_moved_end_no_process(
    past: Path, place: Path, changes: list[tuple[str, int, int]]
) -> None:
    edits = [edit for _, edit in edits_in(past)]

    judge(put(place, first_image(past), forged(edits, changes)))


@pytest.mark.slow
@settings(ONE_DIRECTORY, max_examples=1_000)
@given(changes=CHANGES)
def test_many_edits_that_were_dropped_repeated_or_moved_end_no_process(
    past: Path, place: Path, changes: list[tuple[str, int, int]]
) -> None:
    edits = [edit for _, edit in edits_in(past)]

    judge(put(place, first_image(past), forged(edits, changes)))


def test_the_history_itself_recovers(past: Path, place: Path) -> None:
    edits = [edit for _, edit in edits_in(past)]

    assert judge(put(place, first_image(past), edits)) is None
    assert len({type(edit) for edit in edits}) >= 12


def index_of(edits: Sequence[Edit], kind: type[Any]) -> int:
    return next(at for at, edit in enumerate(edits) if isinstance(edit, kind))


def id_in(edits: Sequence[Edit], kind: type[Any]) -> int:
    """The transaction of the first edit of that kind."""
    edit: Any = edits[index_of(edits, kind)]
    return int(edit.transaction_id)


def without_start_of(edits: list[Edit], kind: type[Any]) -> list[Edit]:
    pointer = id_in(edits, kind)
    return [e for e in edits if not (isinstance(e, Started) and e.pointer == pointer)]


def before_the_confirmation(edits: list[Edit], edit: Edit) -> list[Edit]:
    at = index_of(edits, Confirmed)
    return [*edits[:at], edit, *edits[at:]]


HUGE = PointerRange(1 << 62, (1 << 62) + POINTERS_MAX + 1)
FORGERIES: dict[str, tuple[Callable[[list[Edit]], list[Edit]], str]] = {
    "a commit of what never started": (
        lambda edits: without_start_of(edits, InDoubt), "is not in progress"
    ),
    "a commit in doubt twice": (
        lambda edits: before_the_confirmation(edits, edits[index_of(edits, InDoubt)]), "is in doubt"
    ),
    "an abort of what is in doubt": (
        lambda edits: before_the_confirmation(
            edits, Aborted(NOW_MS, id_in(edits, InDoubt), ())
        ),
        "is in doubt",
    ),
    "a commit of what is in doubt": (
        lambda edits: before_the_confirmation(
            edits,
            replace(edits[index_of(edits, Committed)], transaction_id=id_in(edits, InDoubt)),
        ),
        "is in doubt",
    ),
    "a confirmation of what is not in doubt": (
        lambda edits: [edit for edit in edits if not isinstance(edit, InDoubt)], "is not in doubt"
    ),
    "a commit twice": (
        lambda edits: [*edits, edits[index_of(edits, Committed)]], "is not in progress"
    ),
    "an abort of what committed": (
        lambda edits: [
            *edits,
            Aborted(NOW_MS, id_in(edits, Committed), ()),
        ],
        "neither in progress nor invalid",
    ),
    "an invalidation twice": (
        lambda edits: [*edits, edits[index_of(edits, Invalidated)]], "is not in progress"
    ),
    "a start twice": (
        lambda edits: [*edits, replace(edits[index_of(edits, Started)], seen=len(edits))],
        "was handed out",
    ),
    "a start that saw what comes later": (
        lambda edits: [
            replace(edit, seen=10_000) if isinstance(edit, Started) else edit for edit in edits
        ],
        "started with the endings up to edit 10000",
    ),
    "a start without its block": (
        lambda edits: [
            replace(edit, seen=0) if isinstance(edit, Started) else edit
            for edit in edits
            if not isinstance(edit, BlockReserved)
        ],
        "are reserved",
    ),
    "a block twice": (
        lambda edits: [*edits, edits[index_of(edits, BlockReserved)]], "reserved or handed out"
    ),
    "a block of no possible size": (
        lambda edits: [*edits, BlockReserved(NOW_MS, HUGE)], "has no possible size"
    ),
    "more lost than there is": (
        lambda edits: [*edits, Restarted(NOW_MS, is_after_crash=True, lost=(HUGE,))],
        "more pointers are lost",
    ),
    "a lost range that ends before it starts": (
        lambda edits: [
            *edits,
            Restarted(NOW_MS, is_after_crash=True, lost=(PointerRange(6, 5),)),
        ],
        "ends before it starts",
    ),
    "what was never reserved is lost": (
        lambda edits: [
            *edits,
            Restarted(NOW_MS, is_after_crash=True, lost=(PointerRange(5, 6),)),
        ],
        "are not reserved",
    ),
    "a checkpoint of what has ended": (
        lambda edits: [*edits, edits[index_of(edits, Checkpointed)]], "is not in progress"
    ),
    "a sink that is forgotten twice": (
        lambda edits: [*edits, SinkForgotten(NOW_MS, "s")], "nothing is recorded of the sink"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_contradiction_is_reported_with_its_file_edit_and_cause(
    past: Path, place: Path, name: str
) -> None:
    forge, cause = FORGERIES[name]
    edits = [edit for _, edit in edits_in(past)]

    reason = judge(put(place, first_image(past), forge(edits)))

    assert reason is not None
    assert "txlog.2 is damaged at byte" in reason
    assert "contradicts the edits before it" in reason
    assert cause in reason


def replayed(past: Path, place: Path) -> StateImage:
    put(place, first_image(past), [edit for _, edit in edits_in(past)])
    recovered = recover(place, None)
    assert recovered is not None
    return recovered.state.image()


def _sink(transaction_id: int, state: EndedState | None = None) -> Sink:
    return Sink("s", 1, "r", transaction_id, state, None, NOW_MS, 1, ())


IMAGES: dict[str, tuple[Callable[[StateImage], StateImage], str]] = {
    "an open transaction twice": (
        lambda image: replace(image, open=(*image.open, image.open[0])), "is listed twice"
    ),
    "an open transaction is gone": (
        lambda image: replace(image, open=image.open[1:]), "those in progress"
    ),
    "open transactions out of order": (
        lambda image: replace(
            image, open=tuple(replace(each, seen=9 - n) for n, each in enumerate(image.open))
        ),
        "out of its order",
    ),
    "an ending that is not durable, and not after what is": (
        lambda image: replace(image, pending=((image.seen, ViewChange(0, None)),)),
        "not in the order",
    ),
    "more is durable than there is": (
        lambda image: replace(image, seen=image.lsn + 1), "was durable"
    ),
    "a pointer above those reserved": (
        lambda image: replace(image, last_pointer=image.highest_reserved + 1), "are reserved"
    ),
    "a block of what was handed out": (
        lambda image: replace(image, blocks=(PointerRange(1, 5),)), "was not free"
    ),
    "blocks that overlap": (
        lambda image: replace(image, blocks=(*image.blocks, image.blocks[-1])), "was not free"
    ),
    "a read pointer of the future": (
        lambda image: replace(
            image, view=replace(image.view, read_pointer=image.highest_reserved + 1)
        ),
        "the read pointer",
    ),
    "a sink twice": (
        lambda image: replace(
            image, sinks=(_sink(1, EndedState.COMMITTED), _sink(2, EndedState.COMMITTED))
        ),
        "a sink is listed twice",
    ),
    "a sink whose transaction is not open": (
        lambda image: replace(image, sinks=(_sink(1),)), "is not in progress"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_a_snapshot_that_contradicts_itself_is_damaged(past: Path, place: Path, name: str) -> None:
    forge, cause = IMAGES[name]
    image = replayed(past, place)
    assert judge(put(place, image, [])) is None

    reason = judge(put(place, forge(image), []))

    assert reason is not None
    assert cause in reason
    assert "contradicts itself" in reason


def test_a_transaction_both_open_and_ended_is_damage(past: Path, place: Path) -> None:
    image = replayed(past, place)
    ended = next(each for each in image.outcomes)
    moved = replace(ended, transaction_id=image.open[0].transaction_id)

    reason = judge(put(place, replace(image, outcomes=type(image.outcomes)([moved])), []))

    assert reason is not None
    assert "is in progress, and has ended" in reason


def test_a_header_that_names_another_edit_is_damage(past: Path, place: Path) -> None:
    image = replayed(past, place)
    put(place, image, [])
    (place / "snapshot.1").write_bytes(pack_snapshot(header(1, image.lsn - 1), image))

    reason = judge(place)

    assert reason is not None
    assert "its header says edit" in reason


def test_a_header_with_an_impossible_store_id_is_damage(past: Path, place: Path) -> None:
    put(place, first_image(past), [])
    path = place / "txlog.2"
    forged_header = replace(header(2, 1), store_id="no hex")
    path.write_bytes(pack_header(FileKind.LOG, forged_header))

    reason = judge(place)

    assert reason is not None
    assert "is no id of a store" in reason


def test_the_snapshot_before_a_contradictory_one_is_used(past: Path, place: Path) -> None:
    shutil.copytree(past, place)
    files = [known_file(*each) for each in list_files(place)]
    newest: KnownFile = max(
        (known for known in files if known.kind is FileKind.SNAPSHOT),
        key=lambda known: known.header.sequence,
    )
    _, image = read_snapshot(newest.path.name, newest.path.read_bytes())
    spoilt = replace(image, seen=image.lsn + 1)
    newest.path.write_bytes(pack_snapshot(newest.header, spoilt))

    recovered = recover(place, None)

    assert recovered is not None
    (note,) = (note for note in recovered.notes if "contradicts itself" in note)
    assert "nothing is lost" in note
    assert "`tuff snapshot take`" in note
    assert "salvage" not in note


def test_a_snapshot_without_a_header_is_said_to_be_needless(past: Path, place: Path) -> None:
    """It advised to salvage, and `tuff snapshot take` did not end the remark."""
    shutil.copytree(past, place)
    newest = max(place.glob("snapshot.*"), key=lambda path: int(path.suffix[1:]))
    newest.write_bytes(newest.read_bytes()[:20])

    recovered = recover(place, None)

    assert recovered is not None
    (note,) = (note for note in recovered.notes if newest.name in note)
    assert "nothing is lost" in note
    assert "salvage" not in note


def test_salvage_leaves_out_a_second_start_of_what_committed(past: Path, place: Path) -> None:
    edits = [edit for _, edit in edits_in(past)]
    committed = id_in(edits, Committed)
    put(place, first_image(past), FORGERIES["a start twice"][0](edits))

    proven = prove_state(place, None)
    image = complete_state(proven, now_ms=NOW_MS)

    states = {each.transaction_id: each.state for each in image.outcomes}
    assert states[committed] is EndedState.COMMITTED
    assert any("left out, since it contradicts others" in each.reason for each in proven.decided)


def test_an_edit_that_can_not_be_applied_is_damage_too(
    past: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contradiction that no check finds: messages continue, and the reason names the edit."""
    edits = [edit for _, edit in edits_in(past)]
    put(place, first_image(past), edits)

    def fail(_self: TransactionState, lsn: int, edit: Edit) -> None:
        raise KeyError(f"{lsn} {type(edit).__name__}")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionState, "apply", fail)
        with pytest.raises(ContradictionError) as raised:
            recover(place, None)
        account = TransactionFiles(place).check(None)

    assert isinstance(raised.value.__cause__, KeyError)
    assert "edit 1 (Restarted)" in str(raised.value)
    assert "it can't be applied (KeyError" in str(raised.value)
    assert [finding.location for finding in account.findings] == [place.name]


def test_behind_a_gap_a_pointer_may_be_of_a_block_whose_record_is_lost() -> None:
    state = TransactionState(fresh_image(now_ms=NOW_MS))
    pointer = state.last_pointer + 1
    started = Started(NOW_MS, pointer, TransactionType.SHORT, 1, NOW_MS + 1, "c", 0)
    lost = Restarted(NOW_MS, is_after_crash=True, lost=(PointerRange(pointer, pointer + 1),))

    for edit in (started, lost):
        assert contradiction(state, edit) is not None
        assert contradiction(state, edit, has_gap=True) is None
