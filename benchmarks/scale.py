"""`make bench-scale`: how costs grow; a curve for each quantity that can become large.

    python -m benchmarks.scale [--only PROGRAM ...] [--messages N] [--out DIR] [--dir DIR]

Rates depend on the other load of the machine, and the server's processor time per request hardly
does. So most curves show the latter. Writes scale.json, scale.md and a plot for each program, and
keeps the points of programs that are left out. Takes some ten minutes and 4 GB of disk.
"""

import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.generator import Background, Pace, Report, Rows, Run, measure, number
from benchmarks.machine import describe
from benchmarks.own import first_acknowledged_s
from benchmarks.plots import plot_scale
from benchmarks.processes import Running, tuff
from benchmarks.results import Results, lean, parser_of, read_results, write_results
from benchmarks.tables import print_targets, scale_page
from benchmarks.targets import SCALE

PACE = Pace(seconds=2.0, warm_s=0.3)
HUNDRED = ("-messages", "100")


def topics(directory: Path, _: int) -> Rows:
    """Creating topics, publishing to all in turn, listing them, starting a server with them."""
    made = 0
    for count in (10, 100, 1_000, 10_000):
        with tuff(directory / "topics") as server:
            more = ("-calls", str(count - made), "-window", str(made), "-topic", "t")
            created = measure(PACE.run("create", *more, connections=16), server)
            made = count
            spread = PACE.run("spread", "-topic", "t", "-window", str(count))
            row = _costs(measure(spread, server))
            row["create_cpu_us"] = created["server_cpu_us_per_call"]
            row["list_ms"] = _timed_ms(server, "GET", "/v1/namespaces/default/topics")
            row["resident_mib"] = server.resident_mib()
        row["first_ack_s"] = first_acknowledged_s(directory / "topics")["first_ack_s"]
        yield f"topics {count}", row


def messages(directory: Path, largest: int) -> Rows:
    """Publishing, memory, starting, and reading from the oldest message, by stored messages."""
    there = 0
    for count in (100_000, 1_000_000, 10_000_000):
        if count > largest:
            return
        with tuff(directory / "messages") as server:
            calls = ("-calls", str((count - there) // 100))
            row = _costs(measure(PACE.run("publish", *HUNDRED, *calls), server))
            there = count
            row["resident_mib"] = server.resident_mib()
        row["first_ack_s"] = first_acknowledged_s(directory / "messages")["first_ack_s"]
        with tuff(directory / "messages") as server:
            alone = measure(PACE.run("poll", "-calls", "100", connections=1), server)
            row["read_cpu_us_per_message"] = alone["server_cpu_us_per_message"]
            row["read_messages_per_s"] = alone["messages_per_s"]
            row |= _behind(server)
        yield f"messages {count}", row


def _behind(server: Running) -> Report:
    """How a reader that starts at the oldest message slows concurrent publishes."""
    publishing = PACE.run(
        "publish", "-rate", "500", "-topic", "now", "-procs", "2", mode="open", connections=8
    )
    quiet = measure(publishing, server)
    with Background(publishing, server) as beside:
        reading = measure(PACE.run("poll", connections=1), server)
        busy = beside.report()
    return {
        "publish_p50_alone_us": quiet["p50_us"],
        "publish_p99_alone_us": quiet["p99_us"],
        "publish_p50_beside_a_reader_us": busy["p50_us"],
        "publish_p99_beside_a_reader_us": busy["p99_us"],
        "read_beside_messages_per_s": reading["messages_per_s"],
    }


def waiting(directory: Path, _: int) -> Rows:
    """Polls that wait at the end of a quiet topic."""
    for count in (1, 1_000, 5_000, 10_000):
        with tuff(directory / f"waiting-{count}") as server:
            run = Run(
                scenario="", mode="idle", connections=count, seconds=4.0,
                flags=("-procs", "2", "-topic", "quiet"),
            )  # fmt: skip
            with Background(run, server) as beside:
                report = beside.report()
            kib = number(report, "server_rss_kib") - number(report, "server_rss_before_kib")
            report["kib_per_poll"] = kib / count
            yield f"waiting {count}", report


def open_transactions(directory: Path, _: int) -> Rows:
    """Starting transactions while many long ones are in progress."""
    with tuff(directory / "open") as server:
        there = 0
        for count in (0, 100, 1_000, 10_000):
            if count > there:
                body = '{"lists":false,"type":"long"}'
                opened = ("-start", body, "-calls", str(count - there))
                measure(PACE.run("start", *opened, connections=16), server)
                there = count
            yield f"open {count}", _starting(server)


def invalid_transactions(directory: Path, _: int) -> Rows:
    """Measure with invalid transactions, and the cost of a snapshot file."""
    with tuff(directory / "invalid") as server:
        there = 0
        for count in (0, 1_000, 10_000, 100_000):
            if count > there:
                body = '{"lists":false,"timeout":0.5}'
                started = ("-start", body, "-calls", str(count - there))
                measure(PACE.run("start", *started, connections=64), server)
                there = count
                _until_expired(server, count)
            yield f"invalid {count}", _starting(server) | _snapshot(server)


def _starting(server: Running) -> Report:
    """Starts whose transactions time out; too few to change the number that is measured."""
    body = '{"lists":false,"timeout":2}'
    few = PACE.run("start", "-start", body, "-calls", "1000", connections=8)
    row = _costs(measure(few, server))
    lists = PACE.run("start", "-start", '{"timeout":2}', "-calls", "50", connections=1)
    row["with_lists_cpu_us"] = measure(lists, server)["server_cpu_us_per_call"]
    commits = measure(PACE.run("commit", connections=8), server)
    row["start_and_commit_cpu_us"] = commits["server_cpu_us_per_call"]
    row["resident_mib"] = server.resident_mib()
    return row


def _snapshot(server: Running) -> Report:
    alone_ms = min(_timed_ms(server, "POST", "/v1/transactions/snapshot") for _ in range(3))
    with Background(PACE.run("commit", connections=8), server) as beside:
        time.sleep(PACE.warm_s + PACE.seconds / 2)
        took = _timed_ms(server, "POST", "/v1/transactions/snapshot")
        during = beside.report()
    alone = measure(PACE.run("commit", connections=8), server)
    return {
        "snapshot_ms": alone_ms,
        "snapshot_beside_commits_ms": took,
        "commit_during_snapshot_ms": number(during, "max_us") / 1e3,
        "commit_without_ms": number(alone, "max_us") / 1e3,
    }


def _until_expired(server: Running, count: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if number(_asked(server, "GET", "/v1/transactions"), "invalidCount") >= count:
            return
        time.sleep(0.2)
    raise TimeoutError(f"not {count} transactions timed out within a minute")


def readers(directory: Path, _: int) -> Rows:
    """Committed long polls at the end of one topic, twenty messages a second."""
    with tuff(directory / "readers") as server:
        for count in (1, 10, 100):
            flags = ("-rate", "20", "-readers", str(count), "-procs", "2", "-topic", f"hot{count}")
            run = PACE.run("publish", *flags, mode="tail", connections=2)
            yield f"readers {count}", _costs(measure(run, server))


def payloads(directory: Path, _: int) -> Rows:
    """One message a request, from ten bytes to five mebibytes."""
    with tuff(directory / "payloads") as server:
        for size, count in ((10, 64), (1_024, 64), (102_400, 16), (5_242_880, 4)):
            flags = ("-bytes", str(size), "-topic", f"of{size}")
            row = _costs(measure(PACE.run("publish", *flags, connections=count), server))
            row["mib_per_s"] = number(row, "per_s") * size / 2**20
            yield f"payload {size}", row


PROGRAMS: dict[str, Callable[[Path, int], Rows]] = {
    "topics": topics,
    "waiting": waiting,
    "open": open_transactions,
    "invalid": invalid_transactions,
    "readers": readers,
    "payload": payloads,
    "messages": messages,
}


def _costs(report: Report) -> Report:
    """The figures of curves."""
    kept = ("per_s", "messages_per_s", "p50_us", "p99_us", "errors", "first_error")
    both = (*kept, "server_cpu_us_per_call", "server_cpu_us_per_message")
    return {name: report[name] for name in both if name in report}


def _asked(server: Running, method: str, path: str) -> dict[str, object]:
    return dict(json.loads(_answer(server, method, path)))


def _answer(server: Running, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(server.addr)
    connection.request(method, path)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    assert reply.status == 200, body
    return body


def _timed_ms(server: Running, method: str, path: str) -> float:
    began = time.perf_counter()
    _answer(server, method, path)
    return (time.perf_counter() - began) * 1e3


def main(arguments: list[str]) -> int:
    parser = parser_of("scale", __doc__)
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS))
    parser.add_argument("--messages", type=int, default=10_000_000, help="the most to be stored")
    options = parser.parse_args(arguments)
    file = options.out / "scale.json"
    found = dict(read_results(file).rounds[0]) if file.exists() else {}
    for name in options.only or list(PROGRAMS):
        with tempfile.TemporaryDirectory(prefix="tuff-bench-", dir=options.dir) as directory:
            for row, report in PROGRAMS[name](Path(directory), options.messages):
                print(f"{row}: {json.dumps(lean([{row: report}])[0][row])}", flush=True)
                found[row] = report
        results = Results(machine=describe(options.dir), missing={}, rounds=lean([found]))
        write_results(file, results)  # after each program, since a long run may be interrupted
    results = read_results(file)
    (options.out / "scale.md").write_text(scale_page(results))
    plot_scale(results, options.out)
    print_targets(SCALE, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
