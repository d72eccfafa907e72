"""One state that a power cut left: whether everything that was told by then is true of it.

The very recovery of the server runs on it, in this process and on the real engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from admin.data_directory import DataDirectory
from admin.findings import Finding
from admin.fsck import check
from messaging.read.poll import Poll
from tests.faults.ledger import Fate, Unit, View, check_committed, check_prefix
from tests.faults.powercut_disk import NOT_READ
from tests.faults.powercut_ledger import Account, Told
from tests.faults.powercut_load import NAMESPACE, TOPICS
from tests.faults.powercut_run import Recording
from tests.scripts.world import Clock, Life
from tuff.disk.locks import LOCK_FILE
from tuff.protocol.errors import TopicNotFoundError, TransactionUnknownError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Isolation, PublishEntry
from tuff.protocol.transaction import Transaction, TransactionType
from tuff.tables.leveldb_table import TransactionalTable
from tx.durable_state import ServiceState
from tx.outcomes import EndedState, Outcome

FATES = {EndedState.COMMITTED: Fate.SEEN}  # any other end hides


class Recovered(Life):
    """A server that has recovered, and is asked what it knows without a way over the network."""

    async def outcome(self, pointer: int) -> Fate:
        """How a transaction ended; one that is in progress is ended, as nobody undid its writes."""
        transactions = self._rooms.transactions
        try:
            found = await transactions.completion.outcome(pointer)
        except TransactionUnknownError:
            return Fate.HIDDEN  # its start was lost with the power
        if not isinstance(found, Outcome):
            found = await transactions.completion.invalidate(pointer)
        return FATES.get(found.state, Fate.HIDDEN)

    async def begin(self) -> Transaction:
        opened = await self._rooms.transactions.starts.start(TransactionType.SHORT, None, "judge")
        return opened.transaction

    async def end_open(self) -> None:
        for opened in (await self._rooms.transactions.monitoring.overview()).open:
            await self._rooms.transactions.completion.invalidate(opened.transaction.transaction_id)

    def why_down(self) -> list[str]:
        """What keeps a room down, and nothing when both are up."""
        state, reason = self._rooms.messaging.status
        status = self._rooms.transactions.status
        down = [] if state == "ok" else [f"messages are down: {reason}"]
        if status.state is not ServiceState.RUNNING:
            down.append(f"transactions are {status.state.value}: {status.reason}")
        return down

    async def view(self, *, isolation: str) -> View:
        """What a reader finds from the beginning; nothing of a topic that is not there."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name in TOPICS:
            items = await self._poll(name, isolation)
            if items is not None:
                found[name] = [
                    (id_bytes.hex(), payload.decode().partition("|")[0])
                    for id_bytes, payload in items
                ]
        return found

    async def _poll(self, name: str, isolation: str) -> list[tuple[bytes, bytes]] | None:
        poll = Poll(isolation=Isolation(isolation))
        try:
            return (await self._rooms.messaging.polls.poll(TopicId(NAMESPACE, name), poll)).items
        except TopicNotFoundError:
            return None

    async def run(self, name: str) -> tuple[int, str]:
        """Publish one message more, in one go: the pointer and the payload."""
        entry = PublishEntry(topic=TopicId(NAMESPACE, name), payloads=(b"later",))
        outcome = await self._rooms.transactions.runs.run([entry], client="", request_id=None)
        return outcome.published[0].pointer, "later"


@dataclass(frozen=True, slots=True)
class Judge:
    """Knows what was told in a run."""

    recording: Recording

    @property
    def account(self) -> Account:
        return self.recording.account

    async def judge(self, home: Path, *, position: int, now_ms: int) -> None:
        """Raise AssertionError unless all that was told by then is true of what lies in `home`."""
        recording = self.recording
        assert_no_damage(home / recording.data.relative_to(recording.root), now_ms=now_ms)
        table = home / recording.table.relative_to(recording.root)
        data = home / recording.data.relative_to(recording.root)
        for copy in recording.copies:
            target = home / copy.name
            assert target.is_dir() or position < copy.told_at, f"{copy.name} is gone"
            if target.is_dir() and copy.is_exact:
                assert _content(target) == _content(recording.root / copy.name), (
                    f"{copy.name} is another"
                )
            elif target.is_dir():
                await self._look(target, None, position=position, now_ms=now_ms)
        await self._look(data, table, position=position, now_ms=now_ms)

    async def _look(self, data: Path, table: Path | None, *, position: int, now_ms: int) -> None:
        clock = Clock()
        clock.move(now_ms - clock.wall_ns() // 1_000_000)
        life = Recovered(data, clock, [])
        await life.recover()
        try:
            assert not life.why_down(), life.why_down()
            early = await life.view(isolation="committed")
            await life.end_open()
            units = [await self._known(life, told, position) for told in self._asked_by(position)]
            await self._check_messages(life, early, units, position)
            if table is not None:
                await self._check_table(life, table, position)
            await self._check_goes_on(life, position)
        finally:
            await life.close()

    def _asked_by(self, position: int) -> Sequence[Told]:
        return [told for told in self.account.told if told.asked_at <= position]

    async def _known(self, life: Recovered, told: Told, position: int) -> Unit:
        unit = told.unit
        pointer = unit.pointer
        if told.told_at <= position:
            if pointer is not None:
                assert await life.outcome(int(pointer)) is unit.fate, unit
            return unit
        fate = Fate.MAYBE if pointer is None else await life.outcome(int(pointer))
        return replace(unit, fate=fate)

    async def _check_messages(
        self, life: Recovered, early: View, units: list[Unit], position: int
    ) -> None:
        committed, everything = (
            await life.view(isolation="committed"), await life.view(isolation="all"),
        )  # fmt: skip
        if position >= self.recording.topics_at:
            assert set(committed) == set(TOPICS), f"topics are gone: {sorted(committed)} are there"
        unsure = {told.unit.name for told in self._asked_by(position) if told.told_at > position}
        check_committed(units, committed, unsure=unsure)
        check_prefix(early, committed)
        for handed in self.account.handed:
            if handed.topic and handed.at <= position:
                assert handed.message in everything[handed.topic], f"{handed} is gone"

    async def _check_table(self, life: Recovered, directory: Path, position: int) -> None:
        rows = await self._rows(life, directory)
        expected: set[tuple[str, str]] = set()
        for told in self._asked_by(position):
            if told.rows and told.unit.pointer is not None:
                fate = await life.outcome(int(told.unit.pointer))
                expected |= set(told.rows if fate is Fate.SEEN else ())
        assert rows == expected, f"of the table {sorted(rows ^ expected)[:5]} differ"

    async def _rows(self, life: Recovered, directory: Path) -> set[tuple[str, str]]:
        """Of a table that is gone there are none, whatever was acknowledged."""
        if not directory.is_dir():
            return set()
        with TransactionalTable(directory) as table:
            table.start_tx(await life.begin())
            return {(key.decode(), value.decode()) for key, value in table.scan()}

    async def _check_goes_on(self, life: Recovered, position: int) -> None:
        """What comes next has a higher pointer, and stands behind all that anybody was handed."""
        if position < self.recording.topics_at:
            return
        pointer, payload = await life.run(TOPICS[0])
        handed = [each for each in self.account.handed if each.at <= position]
        assert pointer > max((each.pointer for each in handed), default=0), "a pointer went back"
        [(last, _)] = [m for m in (await life.view(isolation="all"))[TOPICS[0]] if m[1] == payload]
        ids = [each.message[0] for each in handed if each.topic == TOPICS[0]]
        assert last > max(ids, default=""), "an id went back"


def _content(data: Path) -> dict[str, bytes]:
    return {
        path.relative_to(data).as_posix(): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name not in {LOCK_FILE, *NOT_READ}
    }


def assert_no_damage(data: Path, *, now_ms: int) -> list[Finding]:
    """A power cut may leave a torn tail, and damages nothing; what is in doubt."""
    if not (data / "messages").is_dir() and not (data / "snapshots").is_dir():
        return []
    findings = check(DataDirectory.of(data), now_ms=now_ms).findings
    damages = [finding for finding in findings if finding.is_corruption]
    assert not damages, f"fsck calls it damage: {damages}"
    return findings
