"""Tuff itself: the kinds of requests that are compared with peers, and the cost of readers."""

import http.client
import time
from pathlib import Path

from benchmarks.generator import Pace, Report, Rows, measure, rows
from benchmarks.processes import ROOT, Running, floor, tuff

FILLED = 1_000  # requests of a hundred messages each, in the topic that is read
HUNDRED = ("-messages", "100")


def first_acknowledged_s(data: Path, *, tree: Path = ROOT) -> Report:
    """Seconds from the start of the process to the first publish that is acknowledged."""
    began = time.perf_counter()
    with tuff(data, tree=tree) as server:
        report = server.start_report()
        connection = http.client.HTTPConnection(server.addr)
        for method, path in (("PUT", ""), ("POST", "/publish")):
            body = b"\x02\x02\x02m\x00" if path else None
            kind = {"Content-Type": "avro/binary"} if path else {}
            connection.request(method, "/v1/namespaces/default/topics/first" + path, body, kind)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200 or not path, reply.status  # the topic may be there already
        report["first_ack_s"] = time.perf_counter() - began
        connection.close()
    return report


def measure_tuff(directory: Path, pace: Pace) -> Rows:
    yield "tuff start", first_acknowledged_s(directory / "empty")
    with tuff(directory / "data") as server, floor(directory) as lowest:
        writes = {
            f"publish c{count}": pace.run("publish", connections=count) for count in (1, 8, 64, 128)
        }
        writes["publish-100 c64"] = pace.run("publish", *HUNDRED, "-topic", "hundreds")
        for count in (1, 64):
            writes[f"commit-10 c{count}"] = pace.run("commit", connections=count)
        for count in (1, 8, 64, 128):
            writes[f"transaction c{count}"] = pace.run("transaction", connections=count)
        writes["run c64"] = pace.run("run")
        for kind, row, count in (("publish", "publish", 256), ("commit", "commit-10", 1000)):
            writes[f"{row} c{count}"] = pace.run(kind, connections=count)
        writes["start-tx c64"] = pace.run("start")
        yield from rows("tuff", writes, server)
        yield from _over_sessions(pace, server, lowest)
        for rate in (1000, 4000):
            run = pace.run("publish", "-rate", str(rate), "-procs", "2", mode="open")
            yield f"tuff open {rate}", measure(run, server)
        yield from _readers(pace, server)
        measure(pace.run("publish", *HUNDRED, "-topic", "read", "-calls", str(FILLED)), server)
        # In the server where they were published: after a restart its tail cache is empty.
        hot = pace.run("poll", "-topic", "read", "-window", "1000", connections=1)
        yield "tuff poll tail", measure(hot, server)
    yield from _cold(directory, pace)


def _over_sessions(pace: Pace, server: Running, lowest: Running) -> Rows:
    """Calls over sessions, four for all callers, each right behind the same calls to the floor."""
    for kind, row, counts in (
        ("publish", "publish", (1, 256)),
        ("start", "start-tx", (64,)),
        ("commit", "commit-10", (64, 1000)),
        ("transaction", "transaction", (1, 32, 64, 128)),
        ("run", "run", (64,)),
    ):
        for count in counts:
            run, label = pace.run(f"session-{kind}", connections=count), f"session-{row} c{count}"
            if kind != "run":  # the floor does not know this call
                yield f"floor {label}", measure(run, lowest)
            yield f"tuff {label}", measure(run, server)


def _cold(directory: Path, pace: Pace) -> Rows:
    """One pass over the topic in a process that has just started, and then repeated passes."""
    with tuff(directory / "data") as server:
        passes = str(FILLED * 100 // 1000)
        cold = pace.run("poll", "-topic", "read", "-calls", passes, connections=1)
        yield "tuff poll cold", measure(cold, server)
        yield "tuff poll all", measure(pace.run("poll", "-topic", "read", connections=1), server)


def _readers(pace: Pace, server: Running) -> Rows:
    """Committed readers that wait at the end of a topic while it grows."""
    every = ("-rate", "1000", "-topic", "tail", "-procs", "2")
    yield "tuff tail", measure(pace.run("publish", *every, mode="tail", connections=16), server)
    for count in (1, 100):
        flags = ("-rate", "20", "-topic", f"tail{count}", "-readers", str(count), "-procs", "2")
        run = pace.run("publish", *flags, mode="tail", connections=2)
        yield f"tuff tail of {count}", measure(run, server)
