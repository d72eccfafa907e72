"""The peers that run on a Java machine: CDAP's messaging, Apache Tephra, Apache Kafka."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.generator import MissingError, Pace, Rows, measure, rows, warm_up
from benchmarks.processes import ROOT, Running, answers_at, free_port, running

SOURCES = ROOT / "benchmarks" / "peers" / "jvm"
BUILT = ROOT / "build" / "benchmarks" / "jvm"  # each peer's classes, and the list of its jars
# Packages that these libraries access by reflection, which Java 17 refuses by default.
OPENED = [
    word
    for package in (
        "java.lang", "java.util", "java.nio", "sun.nio.ch", "jdk.internal.ref",
        "jdk.internal.misc",
    )
    for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
]  # fmt: skip
HUNDRED = ("-messages", "100")
FILLED = 1_000  # requests of a hundred messages, in the topic that is read


def java(peer: str, heap: str = "-Xmx1g") -> list[str]:
    """The beginning of a command. Raises: MissingError."""
    jars = BUILT / peer / "classpath"
    if shutil.which("java") is None or not jars.exists():
        raise MissingError(f"{peer} is not built: run make bench-setup, which needs JDK 17 and mvn")
    return ["java", *OPENED, heap, "-cp", f"{BUILT / peer / 'classes'}:{jars.read_text().strip()}"]


def measure_cdap(directory: Path, pace: Pace) -> Rows:
    """CDAP's messaging over HTTP, and whole transactions with Tephra's service beside it.

    Raises: MissingError.
    """
    http, thrift = free_port(), free_port()
    command = [*java("cdap", "-Xmx2g"), "CdapServer", str(directory / "cdap"), str(http)]
    with running([*command, str(thrift)], directory / "cdap.log", ready=answers_at(http)) as server:
        warm = ("-warm", str(pace.compile_s))
        warm_up(pace.run("publish", *warm, "-topic", "warm"), server)
        runs = {
            f"publish c{count}": pace.run("publish", "-topic", f"p{count}", connections=count)
            for count in (1, 8, 64, 128)
        }
        runs["publish-100 c64"] = pace.run("publish", *HUNDRED, "-topic", "hundreds")
        yield from rows("cdap", runs, server)
        filling = ("-topic", "read", "-calls", str(FILLED))
        measure(pace.run("publish", *HUNDRED, *filling), server)
        yield "cdap poll cold", measure(pace.run("poll", "-topic", "read", connections=1), server)
        tail = pace.run("poll", "-topic", "read", "-window", "1000", connections=1)
        yield "cdap poll tail", measure(tail, server)
        whole = ("-thrift", f"127.0.0.1:{thrift}", "-topic", "whole")
        warm_up(pace.run("tephra-cdap", *warm, *whole), server)
        for count in (1, 8, 64, 128):
            run = pace.run("tephra-cdap", *whole, connections=count)
            yield f"cdap+tephra transaction c{count}", measure(run, server)


def measure_tephra(directory: Path, pace: Pace) -> Rows:
    """Start, ten keys, commit; with its log as shipped, and with its log really forced.

    Raises: MissingError.
    """
    for log in ("shipped", "forced"):
        port = free_port()
        command = [*java("tephra"), "TephraServer", log, str(directory / f"tephra-{log}")]
        with running(
            [*command, str(port)], directory / f"tephra-{log}.log", ready=answers_at(port)
        ) as server:
            warm_up(pace.run("tephra", "-warm", str(pace.compile_s)), server)
            runs = {f"{log} c{n}": pace.run("tephra", connections=n) for n in (1, 64)}
            yield from rows("tephra", runs, server)


def measure_kafka(directory: Path, pace: Pace) -> Rows:
    """One node, its own clients: as shipped, and with an fsync for every append.

    Raises: MissingError.
    """
    for log, line in (("shipped", ""), ("forced", "log.flush.interval.messages=1\n")):
        with kafka_broker(directory / f"kafka-{log}", line) as broker:
            loads = {"produce c64": "produce:64", "transaction c8": "transaction:8"}
            if log == "shipped":
                loads["transaction c64"] = "transaction:64"
            load = [*java("kafka"), "KafkaLoad", broker.addr, str(pace.seconds)]
            load += [str(pace.compile_s), *loads.values()]
            done = subprocess.run(load, capture_output=True, text=True, check=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            for label, said in zip(loads, lines, strict=True):
                yield f"kafka {log} {label}", json.loads(said)


@contextmanager
def kafka_broker(home: Path, settings: str = "") -> Iterator[Running]:
    """A broker of one node as it is shipped, but for these lines, with its data in `home`.

    Raises: MissingError, StartError.
    """
    port = free_port()
    home.mkdir()
    properties = home / "server.properties"
    text = (SOURCES / "kafka" / "server.properties").read_text()
    properties.write_text(
        text.format(directory=home / "data", port=port, controller=free_port()) + settings
    )
    tool = [*java("kafka"), "kafka.tools.StorageTool", "format", "-c", str(properties)]
    subprocess.run([*tool, "-t", "MkU3OEVBNTcwNTJENDM2Qg"], check=True, capture_output=True)
    command = [*java("kafka"), f"-Dkafka.logs.dir={home}", "kafka.Kafka", str(properties)]
    with running(command, home.with_suffix(".log"), ready=answers_at(port)) as broker:
        yield broker


def connector_classpath() -> str:
    """What Spark needs for its own Kafka source and sink. Raises: MissingError."""
    listed = BUILT / "spark" / "classpath"
    if not listed.exists():
        raise MissingError("Spark's Kafka connector could not be had: run make bench-setup")
    return f"{BUILT / 'spark' / 'classes'}:{listed.read_text().strip()}"
