"""Redis streams with `appendfsync always`: what an acknowledged XADD costs."""

import shutil
from pathlib import Path

from benchmarks.generator import MissingError, Pace, Rows, measure, rows
from benchmarks.processes import answers_at, free_port, running


def measure_redis(directory: Path, pace: Pace) -> Rows:
    """Raises: MissingError."""
    program = shutil.which("redis-server")
    if program is None:
        raise MissingError("there is no redis-server here; Debian's package is redis-server")
    port = free_port()
    home = directory / "redis"
    home.mkdir()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with running(command, directory / "redis.log", ready=answers_at(port)) as server:
        runs = {
            f"xadd c{count}": pace.run("xadd", "-topic", f"s{count}", connections=count)
            for count in (1, 8, 64, 128)
        }
        runs["xadd-100 c64"] = pace.run("xadd", "-messages", "100", "-topic", "hundreds")
        yield from rows("redis", runs, server)
        tail = pace.run(
            "xadd", *("-target", "redis", "-topic", "tail", "-rate", "1000", "-procs", "2"),
            mode="tail", connections=16,
        )  # fmt: skip
        yield "redis tail", measure(tail, server)
