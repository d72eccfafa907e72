"""Where the server's time goes under load: a flame graph, and the share of each component.

    python -m benchmarks.flame [--out DIR]

py-spy looks at the threads that run or hold the interpreter, a few hundred times a second, from
outside of the process. Writes flame-NAME.svg and profile.md.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.generator import Background, MissingError, Pace
from benchmarks.processes import ROOT, Running, tuff
from benchmarks.results import RESULTS

SECONDS = 4  # of each recording
SCENARIOS = ("publish", "transaction", "poll")
# By a part of the path of a frame; the first match of the innermost frame counts.
COMPONENTS = {
    "messaging/engines": "LevelDB (plyvel) and its table",
    "messaging/": "messaging",
    "tx/": "tx",
    "tuff_storage/leveldb": "LevelDB (plyvel) and its table",
    "tuff_storage/": "tuff_storage: files",
    "kernel/": "kernel: batch routes, group commit, threads",
    "tuff/protocol": "tuff.protocol: bytes and JSON",
    "process/": "process: HTTP edge",
    "server.py": "server",
    "aiohttp/": "aiohttp",
    "asyncio/": "asyncio: event loop, sockets",
    "selectors.py": "asyncio: event loop, sockets",
    "json/": "tuff.protocol: bytes and JSON",
    "concurrent/": "threads: waiting, and handing over",
    "threading.py": "threads: waiting, and handing over",
}


def shares(stacks: Iterable[str]) -> dict[str, float]:
    """Each component's share of the samples; `stacks` are lines `frame;frame;... count`."""
    counted: Counter[str] = Counter()
    for line in stacks:
        frames, _, count = line.rpartition(" ")
        counted[_component(frames.split(";"))] += int(count)
    total = counted.total()
    return {component: count / total for component, count in counted.most_common()}


def _component(frames: list[str]) -> str:
    for frame in reversed(frames):
        place = re.search(r"\((.*):\d+\)$", frame)
        for part, component in COMPONENTS.items():
            if place and part in place[1].removeprefix(str(ROOT)):
                return component
    return "other"


def profile_page(profiles: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    components = dict.fromkeys(name for profile in profiles.values() for name in profile)
    yield "# Where the server's time goes"
    yield ""
    yield "Written by `make bench`: samples of the threads that work, by whose frame is innermost."
    yield "Time in C (the event loop, sockets, LevelDB) is its caller's."
    yield ""
    yield f"| | {' | '.join(profiles)} |"
    yield "|---|" + "---|" * len(profiles)
    for component in components:
        cells = (f"{100 * profile.get(component, 0):.0f} %" for profile in profiles.values())
        yield f"| {component} | {' | '.join(cells)} |"


def record(out: Path) -> None:
    """Raises: MissingError."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise MissingError("there is no py-spy here: run make bench-setup")
    profiles = {}
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="tuff-bench-") as directory:
            with tuff(Path(directory) / "data") as server:
                stacks = _under_load(spy, scenario, server, Path(directory), out)
            profiles[scenario] = shares(stacks)
    (out / "profile.md").write_text("\n".join(profile_page(profiles)) + "\n")


def _under_load(spy: str, scenario: str, server: Running, directory: Path, out: Path) -> list[str]:
    pace = Pace(seconds=2.5 * SECONDS)
    if scenario == "poll":  # needs something to read
        fill = Pace().run("publish", "-messages", "100", "-calls", "1000")
        with Background(fill, server) as filling:
            filling.report()
    connections = 1 if scenario == "poll" else 64
    raw = directory / "stacks"
    with Background(pace.run(scenario, connections=connections), server) as load:
        for file, kind in ((out / f"flame-{scenario}.svg", "flamegraph"), (raw, "raw")):
            command = [spy, "record", "--pid", str(server.pid), "--duration", str(SECONDS)]
            command += ["--rate", "400", "--format", kind, "--output", str(file), "--nonblocking"]
            names = [] if kind == "flamegraph" else ["--full-filenames"]
            subprocess.run([*command, *names], check=True, capture_output=True)
        load.report()
    _remove_directories(out / f"flame-{scenario}.svg")
    return raw.read_text().splitlines()


def _remove_directories(picture: Path) -> None:
    # Its title is py-spy's command line, with the directories of this machine.
    drawn = picture.read_text("utf-8")
    picture.write_text(drawn.replace(f"{ROOT}/", ""), "utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    record(out)
    print((out / "profile.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
