"""`python -m tests.fuzz.api --examples N`: every endpoint of a server, by its OpenAPI document.

Schemathesis sends requests that follow `/openapi.json` and requests that don't, and compares each
reply with the document, with its extensions as schemas (`contract.strict`): no undocumented status,
code, header or body, no internal error, no invalid request that is accepted. Two of its checks are
left out:

- `positive_data_acceptance`: rules that JSON Schema can't say make the server refuse bodies that
  follow it ("a pointer or at least one message", "at most one of isolation and tx", 1.0 for 1);
- `allow_header_conformance`: `/v1/transactions/run` also fits `/v1/transactions/{tx}`.

Stopping the service is left out too, since every later reply would correctly be a 503.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.http.client import ok
from tests.http.contract import strict
from tests.http.process import ServerProcess, serve

LEFT_OUT = "positive_data_acceptance,allow_header_conformance"
# A stop would end the run; and this server is in no cluster, so it knows none of those addresses.
PATHS_LEFT_OUT = "service/stop|^/v1/cluster"
WITHIN_S = 3_600


def check(server: ServerProcess, *, examples: int, seed: int) -> tuple[int, str]:
    """Schemathesis' exit code and output."""
    document = server.home / "openapi.json"
    document.write_text(json.dumps(strict(ok(server.client().get("/openapi.json")).json)))
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", server.url,
        "--checks", "all", "--exclude-checks", LEFT_OUT, "--exclude-path-regex", PATHS_LEFT_OUT,
        "--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure",
        "--suppress-health-check", "all", "--warnings", "off",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=server.home, env={**os.environ, "NO_COLOR": "1"}, capture_output=True,
        text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.api", description=__doc__)
    parser.add_argument("--examples", type=int, default=20, help="of each endpoint, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home, serve(Path(home)) as server:
        code, output = check(server, examples=options.examples, seed=options.seed)
    if code != 0:
        print(output)
    counted = re.search(r"(\d+) generated", output)
    count = counted[1] if counted else "no"
    print(f"{count} requests by the server's own document, " + ("ok" if code == 0 else "see above"))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
