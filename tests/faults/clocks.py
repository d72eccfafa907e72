"""A wall clock that is set and that stands still, under a server and between two starts:
`python -m tests.faults.clocks`.

Only the wall clock changes, as by an operator or a time server; time since boot does not. Ids and
pointers only rise and stay near the true time, nothing expires early, and a start after a jump of
the clock reports it in its readiness (promise 2; design §5, Time).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.disk import Shim, build
from tests.http.calls import Topic, Tx, begin, ids
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve

HOUR_S, DAY_S, YEAR_S = 3_600, 86_400, 31_557_600
STEPS_S = (-0.001, -1, -HOUR_S, -DAY_S, 10 * YEAR_S, 0, -1, HOUR_S, 0)
STARTS_S = (-1, 0, -HOUR_S, 0, -DAY_S, 0, HOUR_S, 0, 10 * YEAR_S, 0)
JUMP_S_MAX = 2_592_000  # seconds; the default of server.max_clock_jump
SHORT_S = 5  # seconds; a clock that is set back by less has caught up during the test
NEAR_MS = 60_000  # ms from the true time, for a slow machine
SETTINGS = ("tx.default_timeout=600", "messaging.max_block=600", "messaging.cleanup_interval=0.2")
POINTERS_PER_MS = 1_000_000


@dataclass(slots=True)
class Watch:
    """The pointers and ids of all replies so far, and the published payloads."""

    pointers: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    @property
    def last_ms(self) -> int:
        """The time in the newest id."""
        return int(self.ids[-1][:16], 16) if self.ids else 0


class Clocks:
    """One data directory, and servers whose wall clock is set by the test."""

    def __init__(self, library: Path, home: Path) -> None:
        self._home = home / "home"
        self._home.mkdir()
        self._shim = Shim(library, root=self._home, control=home / "control")
        self.watch = Watch()
        self.step_count = 0
        self._shift_s = 0.0
        self._mark_s = 0.0
        self._is_trusted = True
        self._server: ServerProcess | None = None
        self._open: Tx | None = None
        self.start()

    @property
    def client(self) -> Client:
        assert self._server is not None
        return self._server.client()

    @property
    def topic(self) -> Topic:
        return Topic(self.client, "clock", "t")

    def start(self) -> None:
        self._server = serve(self._home, *SETTINGS, environment=self._shim.environment())
        if not self.watch.sent:
            ok(self.topic.create({"ttl": 2 * HOUR_S}))

    def end(self) -> None:
        if self._server is not None:
            self._server.end()

    def in_one_life(self, steps_s: Sequence[float]) -> None:
        """Set the clock under a running server, and finally stop it."""
        self._open = begin(self.client, client="patient")
        for step_s in steps_s:
            self._shim.set_clock(wall_s=step_s)
            self._work(f"a step of {step_s} s")
        self._shim.set_clock(frozen_at_s=time.time())
        for number in range(3):
            self._work(f"a clock that stands still, {number}")
        self._shim.set_clock()
        assert self._open.state() == "in_progress", "a transaction timed out early"
        ok(Tx(self.client, self._open.object).commit(changes=["late"]))

    def between_lives(self, steps_s: Sequence[float], *, kills: bool) -> None:
        """Set the clock between two starts."""
        for step_s in steps_s:
            assert self._server is not None
            if kills:
                self._server.kill()
            self._server.end()
            if self._is_trusted:
                self._mark_s = time.time() + self._shift_s
            self._shim.set_clock(wall_s=step_s)
            self._shift_s = step_s
            self.start()
            self._check_readiness(time.time() + step_s - self._mark_s)
            self._work(f"a start {step_s} s off", shift_s=step_s)

    def _check_readiness(self, jump_s: float) -> None:
        """`jump_s`: how far the clock is ahead of the last trusted time."""
        self._is_trusted = 0 <= jump_s <= JUMP_S_MAX
        ids_ahead_s = self.watch.last_ms / 1000 - time.time() - self._shift_s
        reply = ok(self.client.get("/health/ready"))
        clock = reply.json["checks"]["clock"]
        if abs(jump_s) < SHORT_S:
            self._is_trusted = True  # the clock has caught up by now, or soon will
            if ids_ahead_s < NEAR_MS / 1000:
                return
        expected = "ok" if self._is_trusted and ids_ahead_s < NEAR_MS / 1000 else "degraded"
        assert clock["status"] == expected, f"after a jump of {jump_s} s: {clock}"
        assert reply.json["status"] == expected, reply.json

    def _work(self, what: str, *, shift_s: float = 0.0) -> None:
        """Publish with and without a transaction: ids and pointers are higher than before and near
        the true time, and no message has expired early."""
        self.step_count += 1
        watch = self.watch
        payload = f"{len(watch.sent)}"
        tx = begin(self.client)
        ok(self.topic.publish(payload))
        ok(self.topic.publish(f"{payload} tx", tx=tx.id))
        ok(tx.commit())
        watch.sent += [payload, f"{payload} tx"]
        found = ids(self.topic.poll())
        assert found == sorted(set(found)), what
        new = [message_id for message_id in found if not watch.ids or message_id > watch.ids[-1]]
        assert len(new) == 2, f"after {what} {len(new)} of 2 new messages are behind the others"
        true_ms = (time.time() + shift_s) * 1000
        # After a clock that was set back, ids continue right after the last one.
        base_ms = max(true_ms, watch.last_ms)
        pointer = int(tx.id)
        last_pointer = max(watch.pointers, default=0)
        assert pointer > last_pointer, f"after {what} a pointer went back"
        base_pointer = max(base_ms * POINTERS_PER_MS, last_pointer)
        assert abs(pointer - base_pointer) < NEAR_MS * POINTERS_PER_MS, f"after {what}: {pointer}"
        watch.pointers.append(pointer)
        watch.ids += new
        assert abs(watch.last_ms - base_ms) < NEAR_MS, f"after {what}: {watch.ids[-1]}"
        if not shift_s:
            self._check_nothing_expired(what)

    def _check_nothing_expired(self, what: str) -> None:
        until(lambda: ok(self.client.get("/health/ready")))
        found = self.topic.read()
        assert found == self.watch.sent, f"after {what} {len(found)} of {len(self.watch.sent)} left"


def run(library: Path, home: Path, *, steps_s: Sequence[float], starts_s: Sequence[float]) -> int:
    """Run all steps; the number of settings of the clock."""
    clocks = Clocks(library, home)
    try:
        clocks.in_one_life(steps_s)
        clocks.between_lives(starts_s, kills=False)
        clocks.between_lives(starts_s, kills=True)
    finally:
        clocks.end()
    return clocks.step_count


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code. A broken promise ends it with the failed assertion."""
    argparse.ArgumentParser(prog="clocks", description=__doc__).parse_args(arguments)
    with TemporaryDirectory() as directory:
        home = Path(directory)
        count = run(build(home), home, steps_s=STEPS_S, starts_s=STARTS_S)
    print(f"clocks: {count} settings of the wall clock, 0 wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
