"""Judges one state that a power cut left: every reply that clients had by then must be true.

The server's own recovery runs on it, in this process and with LevelDB.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from admin.data_directory import DataDirectory
from admin.findings import Finding
from admin.fsck import check as fsck
from messaging.read import poll as messages
from tests.faults.checker import violations
from tests.faults.checker_anomalies import report
from tests.faults.history import (
    BEGINNING,
    Action,
    Append,
    Attempt,
    Outcome,
    Poll,
    Read,
    View,
)
from tests.faults.powercut_disk import NOT_READ
from tests.faults.powercut_run import Recording
from tests.faults.workload_powercut import NAMESPACE, TOPICS, last_time_at, row_value
from tests.scripts.world import Clock, Life
from tuff.protocol.errors import TopicNotFoundError, TransactionUnknownError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Isolation, PublishEntry
from tuff.protocol.transaction import Transaction
from tuff.tables.leveldb_table import TransactionalTable
from tuff_storage.disk.locks import LOCK_FILE
from tx.calls import StartRequest
from tx.durable_state import ServiceState
from tx.outcomes import EndedState
from tx.outcomes import Outcome as Ended


class Recovered(Life):
    """A recovered server, which is called without HTTP."""

    async def outcome(self, pointer: int) -> Outcome:
        """The outcome of a transaction; one in progress is invalidated."""
        transactions = self._components.transactions
        try:
            found = await transactions.runner.outcome(pointer)
        except TransactionUnknownError:
            return Outcome.FAIL  # the power cut lost its start
        if not isinstance(found, Ended):
            found = await transactions.runner.invalidate(pointer)
        return Outcome.OK if found.state is EndedState.COMMITTED else Outcome.FAIL

    async def begin(self) -> Transaction:
        opened = await self._components.transactions.runner.start(StartRequest(client="judge"))
        return opened.transaction

    async def end_open(self) -> None:
        for opened in (await self._components.transactions.monitoring.overview()).open:
            await self._components.transactions.runner.invalidate(opened.transaction.transaction_id)

    def why_down(self) -> list[str]:
        """Why a component is down, one sentence for each; empty if both are up."""
        state, reason = self._components.messaging.status
        status = self._components.transactions.status
        down = [] if state == "ok" else [f"messages are down: {reason}"]
        if status.state is not ServiceState.RUNNING:
            down.append(f"transactions are {status.state.value}: {status.reason}")
        return down

    async def read(self, view: View, *, invoked: int) -> Attempt:
        """Read all existing topics from the beginning."""
        polls = [await self._poll(name, view) for name in TOPICS]
        return read_at(invoked, *(poll for poll in polls if poll is not None))

    async def _poll(self, name: str, view: View) -> Poll | None:
        asked = messages.Poll(isolation=Isolation(view.value))
        try:
            found = await self._components.messaging.polls.poll(TopicId(NAMESPACE, name), asked)
        except TopicNotFoundError:
            return None
        return Poll(
            topic=name,
            view=view,
            found=tuple(
                (id_bytes.hex(), payload.decode().partition("|")[0])
                for id_bytes, payload in found.items
            ),
            after=BEGINNING,
            until=found.next_id.hex(),
            at_end=found.caught_up,
        )

    async def run(self, name: str) -> tuple[int, str]:
        """Publish another message in a run: its pointer and payload."""
        entry = PublishEntry(topic=TopicId(NAMESPACE, name), payloads=(b"later",))
        published = await self._components.transactions.runner.run(
            [entry], client="", request_id=None
        )
        return published[0].pointer, "later"


def read_at(invoked: int, *actions: Action) -> Attempt:
    """The attempt of a reader."""
    return Attempt(
        client="reader", invoked=invoked, completed=invoked, outcome=Outcome.OK, actions=actions
    )


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares states with the history of a recorded run."""

    recording: Recording

    async def judge(self, home: Path, *, position: int, now_ms: int) -> None:
        """Judge the state in `home`.

        Raises: AssertionError: a reply before `position` is not true.
        """
        recording = self.recording
        assert_no_damage(home / recording.data.relative_to(recording.root), now_ms=now_ms)
        table = home / recording.table.relative_to(recording.root)
        data = home / recording.data.relative_to(recording.root)
        for copy in recording.copies:
            target = home / copy.name
            assert target.is_dir() or position < copy.complete_at, f"{copy.name} is gone"
            if target.is_dir() and copy.is_exact:
                assert _content(target) == _content(recording.root / copy.name), (
                    f"{copy.name} is another"
                )
            elif target.is_dir():
                await self._recover_and_check(target, None, position=position, now_ms=now_ms)
        await self._recover_and_check(data, table, position=position, now_ms=now_ms)

    async def _recover_and_check(
        self, data: Path, table: Path | None, *, position: int, now_ms: int
    ) -> None:
        clock = Clock()
        clock.move(now_ms - clock.wall_ns() // 1_000_000)
        life = Recovered(data, clock, [])
        await life.recover()
        try:
            assert not life.why_down(), life.why_down()
            now = last_time_at(position)
            reads = [await life.read(View.COMMITTED, invoked=now + 1)]
            await life.end_open()
            history = [
                await self._known(life, each, now)
                for each in self.recording.history
                if each.invoked <= now
            ]
            reads.append(await life.read(View.COMMITTED, invoked=now + 2))
            # Later, so that it must have all of a commit of which the read before has a part.
            reads.append(await life.read(View.ALL, invoked=now + 3))
            if position >= self.recording.topics_at:
                assert len(reads[-1].actions) == len(TOPICS), "a topic is gone"
            if table is not None:
                reads.append(await self._read_table(life, table, history, invoked=now + 2))
            found = violations([*history, *reads])
            assert not found, report(found)
            await self._check_goes_on(life, history, position)
        finally:
            await life.close()

    async def _known(self, life: Recovered, attempt: Attempt, now: int) -> Attempt:
        """The attempt as its client knew it then, with its outcome in the recovered server."""
        has_reply = attempt.completed is not None and attempt.completed <= now
        if attempt.pointer is None:
            if has_reply:
                return attempt
            # A reader without a reply has read nothing.
            unread = replace(attempt, actions=tuple(attempt.publishes))
            return unread.ended(Outcome.UNKNOWN, completed=None)
        outcome = await life.outcome(int(attempt.pointer))
        if has_reply:
            assert outcome is attempt.outcome, f"{attempt} is {outcome}"
            return attempt
        return replace(attempt.ended(outcome, completed=None), completed=now)

    async def _read_table(
        self, life: Recovered, directory: Path, history: Sequence[Attempt], *, invoked: int
    ) -> Attempt:
        """A reader of all rows of the table, and of all rows that were ever written to it."""
        rows = await self._rows(life, directory)
        keys = {
            action.row
            for attempt in history
            for action in attempt.actions
            if isinstance(action, Append)
        }
        return read_at(
            invoked,
            *(
                Read(key, (row_value(key, rows[key]),) if key in rows else ())
                for key in sorted({*keys, *rows})
            ),
        )

    async def _rows(self, life: Recovered, directory: Path) -> dict[str, str]:
        """The rows of the table; none if it is gone."""
        if not directory.is_dir():
            return {}
        with TransactionalTable(directory) as table:
            table.start_tx(await life.begin())
            return {key.decode(): value.decode() for key, value in table.scan()}

    async def _check_goes_on(
        self, life: Recovered, history: Sequence[Attempt], position: int
    ) -> None:
        """The next transaction gets a higher pointer than any before, its message a higher id."""
        if position < self.recording.topics_at:
            return
        pointer, payload = await life.run(TOPICS[0])
        highest = max((int(each.pointer) for each in history if each.pointer), default=0)
        assert pointer > highest, "a pointer went back"
        found = await life.read(View.ALL, invoked=0)
        [last] = [id_ for id_, value in _found(found, TOPICS[0]) if value == payload]
        ids = [id_ for each in history for id_, _ in _found(each, TOPICS[0])]
        assert last > max(ids, default=""), "an id went back"


def _found(attempt: Attempt, topic: str) -> list[tuple[str, str]]:
    polls = (action for action in attempt.actions if isinstance(action, Poll))
    return [found for poll in polls if poll.topic == topic for found in poll.found]


def _content(data: Path) -> dict[str, bytes]:
    return {
        path.relative_to(data).as_posix(): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name not in {LOCK_FILE, *NOT_READ}
    }


def assert_no_damage(data: Path, *, now_ms: int) -> list[Finding]:
    """A power cut may leave a torn tail, but no corruption; the findings of fsck."""
    if not (data / "messages").is_dir() and not (data / "snapshots").is_dir():
        return []
    findings = fsck(DataDirectory.of(data), now_ms=now_ms).findings
    damages = [finding for finding in findings if finding.is_corruption]
    assert not damages, f"fsck reports corruption: {damages}"
    return findings
