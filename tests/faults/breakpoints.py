"""A kill, an exception and a pause at each breakpoint of a server.

    python -m tests.faults.breakpoints               all breakpoints and faults, as a table
    python -m tests.faults.breakpoints "claimed"     one breakpoint

After each fault the server is killed and started again, except after an exception that a disk could
have raised, from which it has to recover by itself. Then nothing acknowledged is lost, nothing
undecided is visible, and every outcome can be asked for (promises 1, 4, 9).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

from tests.faults.breakpoints_table import BY_NAME, POINTS, Fault, Operation, Point
from tests.faults.history import (
    Attempt,
    Outcome,
    Recorder,
    Requests,
    payloads,
)
from tests.faults.workload_messages import (
    LOST,
    TOPICS,
    VIEWS,
    Accounts,
    Follower,
    Shared,
    create_topics,
    entries_of,
    require_no_violation,
    topic_of,
)
from tests.http.calls import TRANSACTIONS, Tx, begin
from tests.http.client import Client, Reply, ok, until
from tests.http.process import ServerProcess, serve

BREAKPOINT_SERVER = Path(__file__).with_name("breakpoint_server.py")
PASSED_WITHIN_S = 5.0
GOES_ON_WITHIN_S = 60.0  # seconds; a failed log is recovered after 1, 2, 4 … seconds
HERE, THERE = TOPICS[0], TOPICS[1]


class BreakpointServer:
    """A server with breakpoints, which can be restarted on the same data."""

    def __init__(self, home: Path) -> None:
        self._control = home / "control"
        self._control.mkdir(parents=True)
        self._home = home
        self.server = self._serve()
        create_topics(self.server.client())

    def _serve(self) -> ServerProcess:
        environment = {**os.environ, "TUFF_BREAK": str(self._control)}
        return serve(self._home, environment=environment, program=BREAKPOINT_SERVER)

    def arm(self, point: Point, fault: Fault) -> None:
        """Let the fault happen when the breakpoint is passed next."""
        written = self._control / "new"
        written.write_text(f"{point.name}\n{fault.value}")
        written.rename(self._control / "armed")

    def disarm(self) -> None:
        (self._control / "armed").unlink(missing_ok=True)

    def use_log_disk(self, how: str) -> None:
        """Let the disk of the transaction log "hang", "fail" or "work" from now on."""
        if how == "work":
            (self._control / "log-disk").unlink(missing_ok=True)
        else:
            written = self._control / "new"
            written.write_text(how)
            written.rename(self._control / "log-disk")

    def reached(self, what: str) -> set[str]:
        """The breakpoints that were "passed", where it "broke", and the disk that it "used"."""
        path = self._control / "reached"
        lines = path.read_text().splitlines() if path.exists() else []
        return {line.removeprefix(f"{what} ") for line in lines if line.startswith(what)}

    def forget(self) -> None:
        """Forget what was reached so far."""
        (self._control / "reached").unlink(missing_ok=True)

    def restart(self) -> None:
        """SIGKILL, and a start on the same data."""
        self.disarm()
        self.server.kill()
        self.server = self._serve()

    def end(self) -> None:
        self.use_log_disk("work")
        self.server.may_log_traces = True
        self.server.kill()


class BreakpointProgram:
    """Injects faults one after the other, and accounts for each."""

    def __init__(self, broken: BreakpointServer) -> None:
        self._broken = broken
        self._number = 0
        self._shared = Shared(port=broken.server.port)
        self._threads = [Thread(target=Follower(self._shared, view).follow) for view in VIEWS]
        self._accounts = Accounts(self._shared)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop the readers. Raises: AssertionError: one got what it must not see."""
        self._shared.over.set()
        for thread in self._threads:
            thread.join()
        self._shared.raise_failures()

    def at(self, point: Point, fault: Fault) -> str:
        """Run the operation that passes the breakpoint with a fault there, and account for it.

        Returns the reply: "done", "nothing", or an error code.

        Raises: AssertionError: a promise is broken.
        """
        self._number += 1
        attempts, told = self._work(point, fault)
        # The client may be answered a moment before the place that follows the answer is reached.
        until(
            lambda: point.name in self._broken.reached("broke"),
            within_s=PASSED_WITHIN_S,
            what=f"{point.name} to be passed",
        )
        if fault is Fault.EXCEPTION and point.is_at_disk:
            attempts.append(self._goes_on())
        else:
            self._broken.restart()
            self._shared.port = self._broken.server.port
        client = self._broken.server.client()
        self._accounts.add(client, attempts)
        # The followers read the intermediate states as well, and continue.
        require_no_violation(list(self._shared.history))
        self._shared.raise_failures()
        overview = ok(client.get(TRANSACTIONS)).json
        assert overview["inProgress"] == [], overview
        return told

    def _goes_on(self) -> Attempt:
        """A run that is repeated until the server has recovered by itself."""
        client, requests = self._broken.server.client(), self._requests(5)
        body: dict[str, object] = {
            "publish": entries_of(client, requests),
            "requestId": f"after {self._number}",
        }
        run = Recorder(5).ended(Outcome.UNKNOWN, requests, body=body)
        until(
            lambda: client.post(f"{TRANSACTIONS}/run", body).status == 200,
            within_s=GOES_ON_WITHIN_S,
            what="the server to go on after its disk failed",
        )
        return run  # resolving it repeats it once more, whose reply has its ids

    def _work(self, point: Point, fault: Fault) -> tuple[list[Attempt], str]:
        """An attempt that is acknowledged before, and the one with the fault."""
        client = self._broken.server.client()
        before, _ = self._publish(client, lambda: None, who=0)
        assert before.outcome is Outcome.OK
        steps = {
            Operation.PUBLISH: self._publish,
            Operation.COMMIT: self._commit,
            Operation.ABORT: self._abort,
            Operation.SNAPSHOT: self._snapshot,
        }
        attempt, told = steps[point.operation](client, lambda: self._broken.arm(point, fault))
        return [before, attempt], told

    def _requests(self, client: int) -> Requests:
        return (
            (HERE, payloads(client, self._number, 0, 2)),
            (THERE, payloads(client, self._number, 1, 1)),
        )

    def _publish(
        self, client: Client, arm: Callable[[], None], *, who: int = 1
    ) -> tuple[Attempt, str]:
        requests, recorder = self._requests(who)[:1], Recorder(who)
        arm()
        told, outcome = asked(lambda: topic_of(client, HERE).publish(*requests[0][1]))
        return recorder.ended(outcome, requests), told

    def _commit(self, client: Client, arm: Callable[[], None]) -> tuple[Attempt, str]:
        recorder, tx, requests = Recorder(2), begin(client), self._requests(2)
        body: dict[str, object] = {
            "publish": entries_of(client, requests),
            "changes": [f"key {self._number}"],
        }
        arm()
        told, outcome = asked(lambda: tx.commit(**body))
        return recorder.ended(outcome, requests, pointer=tx.id, body=body), told

    def _published(self, client: Client, who: int) -> tuple[Tx, Requests]:
        tx, requests = begin(client), self._requests(who)
        for name, sent in requests:
            ok(topic_of(client, name).publish(*sent, tx=tx.id))
        return tx, requests

    def _abort(self, client: Client, arm: Callable[[], None]) -> tuple[Attempt, str]:
        recorder, (tx, requests) = Recorder(3), self._published(client, 3)
        arm()
        told, outcome = asked(tx.abort, success=Outcome.FAIL)
        return recorder.ended(outcome, requests, pointer=tx.id), told

    def _snapshot(self, client: Client, arm: Callable[[], None]) -> tuple[Attempt, str]:
        recorder, (tx, requests) = Recorder(4), self._published(client, 4)
        arm()
        told, _ = asked(lambda: client.post(f"{TRANSACTIONS}/snapshot"))
        is_alive = self._broken.server.process.poll() is None
        outcome = asked(tx.commit)[1] if is_alive else Outcome.UNKNOWN
        return recorder.ended(outcome, requests, pointer=tx.id), told


def asked(call: Callable[[], Reply], *, success: Outcome = Outcome.OK) -> tuple[str, Outcome]:
    """The client's reply, and the outcome of its attempt by it."""
    try:
        reply = call()
    except LOST:
        return "nothing", Outcome.UNKNOWN
    return ("done", success) if reply.status == 200 else (str(reply.json["code"]), Outcome.UNKNOWN)


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code. A broken promise ends it with the failed assertion."""
    parser = argparse.ArgumentParser(prog="breakpoints", description=__doc__)
    parser.add_argument("points", nargs="*", metavar="PLACE", help="default: all of them")
    options = parser.parse_args(arguments)
    points = [BY_NAME[name] for name in options.points] or POINTS
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        broken = BreakpointServer(Path(home) / "server")
        breaking = BreakpointProgram(broken)
        try:
            print(row("what the client was told:", [fault.value for fault in Fault]))
            for point in points:
                told = [breaking.at(point, fault) for fault in Fault]
                print(row(f"{point.operation.value}: {point.name}", told), flush=True)
        finally:
            breaking.end()
            broken.end()
    print(
        f"{len(points)} places x {len(Fault)} faults in {time.monotonic() - started_s:.0f} s: "
        "nothing lost, nothing undecided visible, every outcome told"
    )
    return 0


def row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<46}{''.join(f'{cell:<28}' for cell in cells)}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
