"""`python -m tests.fuzz --seconds N [--only TARGET]`: every decoder under libFuzzer, for N seconds.

libFuzzer's corpus stays in build/fuzz/, so that the next run continues from there. An input on
which a decoder fails is saved beside it, and named in the output.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
MEMORY_MB_MAX = 1_024  # of the process, of which Python and the instrumented code take 150
INPUT_S_MAX = 10  # for one input
INPUT_BYTES_MAX = 4_096
AT_ONCE = 2  # processes; instrumenting the imports takes longer than a short round
START_S_MAX = 120  # until the instrumented imports are done, on a busy machine


def corpus_of(target: Target) -> Path:
    """The directory of the target's corpus, with the initial inputs."""
    directory = BUILD / target.name
    directory.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (directory / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    return directory


def fuzz(target: Target, *, seconds: int) -> tuple[int, str | None]:
    """The number of inputs tried, and a finding or None."""
    found = BUILD / f"found-{target.name}-"
    command = [
        sys.executable, "-m", "tests.fuzz.one", target.name, f"-max_total_time={seconds}",
        f"-rss_limit_mb={MEMORY_MB_MAX}", f"-timeout={INPUT_S_MAX}", f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={found}", "-print_final_stats=1", str(corpus_of(target)),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace",
        timeout=seconds + START_S_MAX, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    count = re.search(r"stat::number_of_executed_units: +(\d+)", output)
    if done.returncode == 0 and count is not None:
        return int(count[1]), None
    lines = [line.strip() for line in output.splitlines() if "Error" in line or "found-" in line]
    return 0, f"{target.name}: " + " | ".join(lines[-3:] or output.splitlines()[-3:])


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together")
    parser.add_argument("--only", choices=[each.name for each in TARGETS])
    options = parser.parse_args(arguments)
    chosen = [each for each in TARGETS if options.only in (None, each.name)]
    each_s = max(1, options.seconds // len(chosen))
    began, total, findings = time.monotonic(), 0, []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = threads.map(partial(fuzz, seconds=each_s), chosen)
        for target, (count, finding) in zip(chosen, results, strict=True):
            print(f"{target.name:16} {count:>12,} inputs  {finding or 'ok'}", flush=True)
            total += count
            if finding is not None:
                findings.append(finding)
    for finding in findings:
        print(finding)
    print(
        f"{len(chosen)} decoders, {total:,} inputs in {time.monotonic() - began:.0f} s, "
        f"{len(findings)} of them answered wrongly"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
