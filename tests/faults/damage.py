"""Damage to every stored byte: `python -m tests.faults.damage --bytes N --engine M --servers K`.

Bytes of the transaction log's last 64 KiB and of a snapshot file are flipped, and the files cut
there: recovery names the file, or recovers a prefix of the acknowledged edits. Bytes of LevelDB's
files are flipped, and some of the files cut there: fsck finds each, salvage keeps and shows what is
whole, and a server returns nothing wrong and everything that is not damaged (promise 8).
"""

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory

from admin.data_directory import DataDirectory
from admin.salvage import salvage
from tests.admin.files import (
    PATIENT,
    Past,
    cut,
    flipped,
    found_in,
    make_past,
    now_ms,
    stored_files,
)
from tests.admin.judge import MessageName, Seen, look, lost_count_max
from tests.faults.damage_judge import (
    read_past_damage,
    wrong_in_loss,
    wrong_in_reading,
    wrong_in_salvage,
)
from tests.http.calls import Topic, begin
from tests.http.client import Client, ok, until
from tests.http.process import serve
from tx.file_headers import DamagedFilesError
from tx.recovery import recover
from tx.snapshot_file import read_snapshot
from tx.wal import LogContents, read_log

TAIL_BYTES = 64 * 1024
PROVEN_WITHIN_S = 60.0
WHOLE_EVERY = 200  # one of so many cases runs the whole recovery, the others read only the file
CUT_EVERY = 4  # for one of so many flips in LevelDB's files, the file is cut there as well
IN_TABLE = "one"  # prefix of the namespaces whose messages LevelDB has in a table file


@dataclass(slots=True)
class DamageReport:
    """The number of cases by outcome, and sentences about the wrong ones."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, outcome: str) -> None:
        self.counts[outcome] += 1

    def require(self, place: str, sentence: str | None) -> None:
        """Add a sentence of the judge, if there is one."""
        if sentence is not None:
            self.wrong.append(f"{place}: {sentence}")


@dataclass(frozen=True, slots=True)
class Files:
    """The transaction files of a killed server: a log of more than 64 KiB that ends with a mark of
    its durable length, and the snapshot file before it."""

    directory: Path
    log: Path
    snapshot: Path

    @classmethod
    def made(cls, home: Path) -> "Files":
        server = serve(home, *PATIENT)
        directory = server.data / "snapshots"
        with closing(server.client()) as client:
            ok(Topic(client, "damage", "t").create())

            def work(count: int) -> None:
                for _ in range(count):
                    tx = begin(client)
                    ok(Topic(client, "damage", "t").publish("p", tx=tx.id))
                    ok(tx.commit(changes=[f"{'k' * 200} {tx.id} {n}" for n in range(4)]))

            work(30)
            ok(client.post("/v1/transactions/snapshot"))
            log, snapshot = (_newest(directory, kind) for kind in ("txlog", "snapshot"))
            while log.stat().st_size < TAIL_BYTES + 1024:
                work(10)
            # An idle server marks its last edits as durable.
            until(lambda: _proven_length(log) > log.stat().st_size - 100, within_s=PROVEN_WITHIN_S)
        server.kill()
        server.end()
        return cls(directory, log, snapshot)


def _newest(directory: Path, kind: str) -> Path:
    return max(directory.glob(f"{kind}.*"), key=lambda path: int(path.suffix[1:]))


def _proven_length(log: Path) -> int:
    return read_log(log.name, log.read_bytes()).proven_length


def damage_log(files: Files, findings: DamageReport, offsets: list[int], scratch: Path) -> None:
    data = files.log.read_bytes()
    whole = read_log(files.log.name, data)
    for number, at in enumerate(offsets):
        flip = data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]
        for kind, damaged in (("flip", flip), ("cut", data[:at])):
            outcome = _judge_log(files.log.name, damaged, whole, is_cut=kind == "cut")
            findings.note(f"log {kind} {outcome}")
            if outcome == "wrong":
                findings.wrong.append(f"{files.log.name}: {kind} at byte {at}")
            if number % WHOLE_EVERY == 0:
                _recover_whole(files, files.log, damaged, outcome, findings, scratch)


def _judge_log(name: str, damaged: bytes, whole: LogContents, *, is_cut: bool) -> str:
    try:
        found = read_log(name, damaged)
    except DamagedFilesError as error:
        return "told" if name in str(error) else "wrong"
    is_beginning = found.edits == whole.edits[: len(found.edits)]
    if not is_beginning:
        return "wrong"
    if len(found.edits) == len(whole.edits):
        return "harmless"
    # The marks at the end of the newest log say how far it was durable; a cut removes them too.
    return "taken for a torn tail" if is_cut or found.length >= whole.proven_length else "wrong"


def damage_snapshot(
    files: Files, findings: DamageReport, offsets: list[int], scratch: Path
) -> None:
    data = files.snapshot.read_bytes()
    for number, at in enumerate(offsets):
        flip = data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]
        for kind, damaged in (("flip", flip), ("cut", data[:at])):
            try:
                read_snapshot(files.snapshot.name, damaged)
                findings.wrong.append(f"{files.snapshot.name}: {kind} at byte {at} is not seen")
            except DamagedFilesError as error:
                findings.note(f"snapshot {kind} told")
                if files.snapshot.name not in str(error):
                    findings.wrong.append(f"{files.snapshot.name} is not named: {error}")
            if number % WHOLE_EVERY == 0:
                _recover_whole(files, files.snapshot, damaged, "older one", findings, scratch)


def _recover_whole(
    files: Files, path: Path, damaged: bytes, expected: str, findings: DamageReport, scratch: Path
) -> None:
    """The whole recovery with one damaged file: it recovers as expected, or names the file."""
    target = Path(copytree(files.directory, scratch / "whole"))
    truth = recover(files.directory, None)
    assert truth is not None
    (target / path.name).write_bytes(damaged)
    try:
        found = recover(target, None)
        assert found is not None
        is_same = found.state.image() == truth.state.image()
        is_right = is_same if expected in {"older one", "harmless"} else expected != "told"
    except DamagedFilesError as error:
        is_right = expected in {"told", "older one"} and path.name in str(error)
    rmtree(target)
    findings.note("recovered whole")
    if not is_right:
        findings.wrong.append(f"{path.name}: recovery with {len(damaged)} bytes, {expected}")


def damage_engine(
    past: Past, findings: DamageReport, *, count: int, servers: int, seed: int, scratch: Path
) -> None:
    """Flip random bytes of LevelDB's files, and cut some files there, for fsck and salvage, and for
    some cases a server."""
    chance = random.Random(seed)
    data = past.copy(scratch / "engine")
    truth = look(data)
    paths = [path for path in stored_files(data) if path.parent.name == "messages"]
    tables = [path for path in paths if path.suffix == ".ldb"]
    for number in range(count):
        # LevelDB opens only if the damage is in a table, and a server that is down returns nothing
        # wrong. So servers are started until at least one has served.
        is_served = number < servers or (servers > 0 and not _has_served(findings))
        path = chance.choice(tables if is_served and number % 2 == 0 else paths)
        at = chance.randrange(path.stat().st_size)
        place = f"{path.name} at byte {at}"
        with flipped(path, at):
            _check_engine(data, path, place, findings)
            _salvage_flipped(data, truth, path, place, findings, scratch)
            if is_served:
                _serve(data, past, place, findings, scratch)
        if number % CUT_EVERY == 0:
            with cut(path, at):
                _check_cut(data, path, place, findings)
                _salvage_cut(data, truth, path, place, findings, scratch)
    if servers and not _has_served(findings):
        findings.wrong.append("no server served anything on damaged files")


def _has_served(findings: DamageReport) -> bool:
    return any(outcome.startswith("server served") for outcome in findings.counts)


def _check_engine(data: Path, path: Path, place: str, findings: DamageReport) -> None:
    found = found_in(data)
    if any(path.name in finding.location for finding in found):
        findings.note("engine flip found")
    else:
        findings.wrong.append(f"{place}: fsck found {found}")


def _check_cut(data: Path, path: Path, place: str, findings: DamageReport) -> None:
    found = found_in(data)
    if any(finding.location == "both stores" or path.name in finding.location for finding in found):
        findings.note("engine cut found")
    elif path.suffix == ".log":
        findings.note("engine cut taken for a torn tail")  # between two writes of LevelDB
    else:
        findings.wrong.append(f"{place}: cut there, and fsck found {found}")


def _salvaged(data: Path, scratch: Path) -> Seen:
    new = scratch / "salvaged"
    salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)
    seen = look(new)
    rmtree(new)
    return seen


def _salvage_flipped(
    data: Path, truth: Seen, path: Path, place: str, findings: DamageReport, scratch: Path
) -> None:
    seen = _salvaged(data, scratch)
    findings.note(f"salvaged with {len(truth.payloads) - len(seen.payloads)} lost")
    findings.require(place, wrong_in_salvage(truth, seen))
    findings.require(
        place, wrong_in_loss(truth, seen, lost_max=lost_count_max(path), may_lose=truth.payloads)
    )


def _salvage_cut(
    data: Path, truth: Seen, path: Path, place: str, findings: DamageReport, scratch: Path
) -> None:
    seen = _salvaged(data, scratch)
    may_lose: set[MessageName] = set()
    if path.suffix == ".log":
        # LevelDB itself reads the whole beginning of a log.
        may_lose = truth.payloads.keys() - look(data).payloads.keys()
    elif path.suffix == ".ldb":
        may_lose = {name for name in truth.payloads if name[0].startswith(IN_TABLE)}
    lost_max = len(may_lose)
    findings.note("engine cut salvaged")
    findings.require(f"{place}, cut", wrong_in_salvage(truth, seen))
    lost = wrong_in_loss(truth, seen, lost_max=lost_max, may_lose=may_lose)
    findings.require(f"{place}, cut", lost)


def _serve(data: Path, past: Past, place: str, findings: DamageReport, scratch: Path) -> None:
    """A server on the damaged files returns what was there, or reports the damage."""
    home = scratch / "home"
    copytree(data, home / "data")
    server = serve(home, *PATIENT)
    try:
        with closing(server.client()) as client:
            storage = client.get("/health/ready").json["checks"]["storage"]
            if storage["status"] == "down":
                findings.note("server down, with a reason")
                if "tuff" not in storage["detail"] and "orrupt" not in storage["detail"]:
                    findings.wrong.append(f"{place}: {storage['detail']}")
            else:
                _read_everything(client, past, place, findings)
    finally:
        server.may_log_traces = True
        server.end()
        rmtree(home)


def _read_everything(client: Client, past: Past, place: str, findings: DamageReport) -> None:
    outcome = "server served whole"
    for name, expected in past.expected.all_messages.items():
        try:
            reading = read_past_damage(Topic(client, *name.split(":")))
        except AssertionError as error:
            findings.wrong.append(f"{place}: {name}: {error}")
            continue
        if reading.gaps or not reading.is_known:
            outcome = "server served what is not damaged"
        findings.require(f"{place}: {name}", wrong_in_reading(expected, reading))
    findings.note(outcome)


def spread(length: int, count: int) -> Iterator[int]:
    """So many evenly spaced offsets in the last 64 KiB."""
    start = max(0, length - TAIL_BYTES)
    count = min(count, length - start)
    return (start + at * (length - start) // count for at in range(count))


def run(home: Path, *, byte_count: int, engine: int, servers: int, seed: int) -> DamageReport:
    """All kinds of damage, to data below `home`."""
    findings = DamageReport()
    files = Files.made(home / "log")
    damage_log(files, findings, list(spread(files.log.stat().st_size, byte_count)), home)
    size = files.snapshot.stat().st_size
    damage_snapshot(files, findings, list(spread(size, byte_count)), home)
    past = make_past(home / "past")
    damage_engine(past, findings, count=engine, servers=servers, seed=seed, scratch=home)
    return findings


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="damage", description=__doc__)
    parser.add_argument("--bytes", type=int, default=TAIL_BYTES, help="of the log, of a snapshot")
    parser.add_argument("--engine", type=int, default=200, help="flipped bytes of LevelDB's files")
    parser.add_argument("--servers", type=int, default=40, help="of those, with a real server")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # each recovery logs the tail that it cut
    began_s = time.monotonic()
    with TemporaryDirectory() as directory:
        findings = run(
            Path(directory), byte_count=options.bytes, engine=options.engine,
            servers=options.servers, seed=options.seed,
        )  # fmt: skip
    for sentence in findings.wrong[:10]:
        print(sentence)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(findings.counts.items()))
    print(f"damage: {told}; {len(findings.wrong)} wrong, in {time.monotonic() - began_s:.0f} s")
    return 1 if findings.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
