"""Offsets and splits of an idle topic agree with what readers get (protocol §3.6, §3.7)."""

from dataclasses import replace
from typing import Any

from messaging.read.poll import Poll
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.observations import Read, Tx
from tests.simulation.runner import OperationRunner
from tests.simulation.server import Work
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Isolation


def offsets_and_splits(runner: OperationRunner) -> None:
    """Ask for the offsets and splits of a topic, and read it as a whole and split by split."""
    world = runner.world
    if world.disk.cut_in is not None:
        return
    world.server.threads.resume()
    world.run(runner.chance, None)
    tx = runner.tx()
    _extent(runner, Poll(), None)
    _extent(runner, Poll(isolation=Isolation.COMMITTED), None)
    if tx is not None:
        _extent(runner, Poll(tx=tx.pointers[-1]), tx)
    _parts(runner, count=1 + runner.c % 4)


def _extent(runner: OperationRunner, poll: Poll, reader: Tx | None) -> None:
    messaging, topic = runner.world.server.messaging, runner.topic()
    offsets = _answered(
        runner, messaging.offsets.offsets(topic.id, isolation=poll.isolation, tx=poll.tx)
    )
    found = _read_on(runner, poll, reader)
    if offsets is None or found is None:
        return
    ids, last = found
    earliest = None if offsets.earliest is None else offsets.earliest.to_bytes()
    _require(earliest == (ids[0] if ids else None), f"{offsets}, and {poll} begins with {ids[:1]}")
    _require(offsets.blocked_by == last.blocked_by, f"{offsets}, and {poll} waits: {last}")
    if offsets.end is None:
        _require(not ids, f"{offsets}, and {poll} hands out {ids}")
        return
    found = _read_on(runner, replace(poll, through=offsets.end), reader)
    assert found is not None
    is_all = found[0] == ids and found[1].blocked_by is None
    _require(is_all, f"{offsets}, and up to its end {poll} hands out {found[0]} of {ids}")


def _parts(runner: OperationRunner, *, count: int) -> None:
    messaging, topic = runner.world.server.messaging, runner.topic()
    answer = _answered(
        runner, messaging.offsets.splits(topic.id, start=None, end=None, count=count)
    )
    found = _read_on(runner, Poll(), None)
    if answer is None or found is None:
        return
    _, splits = answer
    _require(len(splits) <= count, f"{len(splits)} parts, and {count} were asked for")
    ids: list[bytes] = []
    behind: MessageId | None = None
    for each in splits:
        _require(each.start == behind, f"a part begins at {each.start}, not behind {behind}")
        behind = each.end
        part = _read_on(runner, Poll(start=each.start, inclusive=False, through=each.end), None)
        assert part is not None
        ids += part[0]
    _require(ids == found[0], f"the parts {splits} have {ids}, and the topic has {found[0]}")


def _read_on(
    runner: OperationRunner, poll: Poll, reader: Tx | None
) -> tuple[list[bytes], Read] | None:
    """The ids of all messages that this reader gets, page by page, and its last page."""
    ids: list[bytes] = []
    while True:
        work = runner.client.readers.read(runner.topic(), poll, reader)
        read: Read | None = runner.world.server.complete(work, runner.chance)
        if read is None:
            return None
        ids += [id_bytes for id_bytes, _ in read.items]
        if read.caught_up or not read.items:
            return ids, read
        poll = replace(poll, start=MessageId.from_bytes(read.next_id), inclusive=False)


def _answered(runner: OperationRunner, work: Work) -> Any:
    """The reply, or None for a refusal."""
    try:
        return runner.world.server.complete(work, runner.chance)
    except TuffError:
        return None


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenPromiseError(f"promise 2: {sentence}")
