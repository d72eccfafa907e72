"""Epochs of sinks across crashes: every answer is durable (protocol §5.3)."""

import asyncio

import pytest

from tests.tx.service import Service, entry, turns
from tests.tx.sinks import ask, begin, commit, state
from tuff.protocol.errors import (
    SinkFencedError,
    SinkNotFoundError,
    TransactionInvalidatedError,
    TransactionsUnavailableError,
)


async def test_a_begin_waits_until_both_its_parts_are_durable(service: Service) -> None:
    """Answered earlier, a crash could leave tasks with a transaction that no sink knows: it would
    be committed, and the replay as well."""
    service.disk.hold()
    first = asyncio.create_task(begin(service, 1, "a"))
    second = asyncio.create_task(begin(service, 1, "a"))
    await turns()
    assert not first.done()
    assert not second.done()

    service.disk.release()

    assert (await first).transaction_id == (await second).transaction_id
    again = await service.crash()
    assert (await begin(again, 1, "a")).transaction_id == (await first).transaction_id


async def test_a_begin_that_was_not_durable_is_none_after_a_crash(service: Service) -> None:
    service.disk.hold()
    asking = asyncio.create_task(ask(service, 1, "a"))
    await turns()

    again = await service.crash()
    asking.cancel()

    with pytest.raises(SinkNotFoundError):
        await again.sinks.show("s")
    assert await ask(again, 1, "b") is not None


async def test_no_torn_tail_has_the_transaction_without_its_sink(service: Service) -> None:
    log = max(service.directory.glob("txlog.*"), key=lambda path: path.stat().st_mtime_ns)
    made_size = log.stat().st_size
    tx = await begin(service, 1, "a")
    whole = log.read_bytes()
    await service.kill()
    found = set()

    for size in (*range(made_size, len(whole), 16), len(whole)):
        directory = service.directory / f"cut-{size}"
        directory.mkdir()
        for path in service.directory.iterdir():
            if path.is_file():
                (directory / path.name).write_bytes(path.read_bytes())
        (directory / log.name).write_bytes(whole[:size])
        again = await Service(directory).open()
        shown = await again.sinks.show_all()
        is_open = tx.transaction_id in (await again.write_permits.snapshot()).in_progress
        found.add((len(shown), is_open))
        await again.kill()

    assert found == {(0, False), (1, True)}


async def test_every_answer_about_a_sink_is_durable(service: Service) -> None:
    tx = await begin(service, 1, "a")
    service.disk.hold()
    committing = asyncio.create_task(commit(service, tx))
    await turns()
    asking = asyncio.create_task(ask(service, 1, "b"))
    showing = asyncio.create_task(service.sinks.show("s"))
    listing = asyncio.create_task(service.sinks.show_all())
    await turns()
    assert [task.done() for task in (asking, showing, listing)] == [False] * 3

    service.disk.release()

    await committing
    assert await asking is None
    assert (await showing)[1] == "committed"
    assert [told for _, told in await listing] == ["committed"]


async def test_a_sink_is_not_shown_as_forgotten_before_that_is_durable(service: Service) -> None:
    await commit(service, await begin(service, 1, "a"))
    service.disk.hold()
    forgetting = asyncio.create_task(service.sinks.forget("s"))
    await turns()
    showing = asyncio.create_task(service.sinks.show("s"))
    await turns()
    assert not forgetting.done()
    assert not showing.done()

    again = await service.crash()
    forgetting.cancel()
    showing.cancel()

    assert await state(again) == (1, "a", "committed")


@pytest.mark.parametrize("is_clean", [True, False])
async def test_everything_of_a_sink_survives(service: Service, is_clean: bool) -> None:
    await commit(service, await begin(service, 3, "a", sink="done"))
    await begin(service, 1, "a", sink="fenced")
    open_one = await begin(service, 1, "b", sink="fenced")
    lost = await begin(service, 9, "a", sink="lost")
    await service.runner.invalidate(lost.transaction_id)
    before = [sink for sink, _ in await service.sinks.show_all()]

    again = await service.restart() if is_clean else await service.crash()

    assert [sink for sink, _ in await again.sinks.show_all()] == before
    assert (await begin(again, 1, "b", sink="fenced")).transaction_id == open_one.transaction_id
    with pytest.raises(SinkFencedError):
        await ask(again, 1, "a", sink="fenced")


async def test_a_commit_that_a_crash_cut_off_between_rows_and_record_is_not_committed(
    service: Service,
) -> None:
    tx = await begin(service, 1, "a")
    service.disk.hold()
    committing = asyncio.create_task(
        service.runner.commit(tx.transaction_id, publish=[entry(b"x")])
    )
    await turns()
    assert service.rows.finals == {tx.transaction_id}

    again = await service.crash()
    committing.cancel()

    assert await state(again) == (1, "a", "invalid")
    with pytest.raises(TransactionInvalidatedError) as refusal:
        await ask(again, 1, "a")
    assert refusal.value.members == {"reason": "lost_in_crash"}
    assert await ask(again, 1, "b") is not None


async def test_a_log_that_failed_decides_by_what_it_holds(service: Service) -> None:
    tx = await begin(service, 1, "a")
    service.disk.fails = True
    with pytest.raises(TransactionsUnavailableError):
        await commit(service, tx)
    with pytest.raises(TransactionsUnavailableError):
        await ask(service, 1, "a")
    service.disk.fails = False

    await service.manager.start_service()

    assert await state(service) == (1, "a", "in_progress")
    assert (await begin(service, 1, "a")).transaction_id == tx.transaction_id


async def test_a_stopped_service_begins_nothing(service: Service) -> None:
    await begin(service, 1, "a")
    await service.manager.stop_service()

    for call in (
        ask(service, 1, "a"), service.sinks.show("s"), service.sinks.show_all(),
        service.sinks.forget("s"),
    ):  # fmt: skip
        with pytest.raises(TransactionsUnavailableError):
            await call
