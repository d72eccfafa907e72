"""What watches a `Stop` may do so until the process has ended."""

import subprocess
import sys

PROGRAM = """
import atexit, os
atexit.register(lambda: (os.fstat(stop.fileno()), print(stop.is_set)))  # it runs last
from tuff.stop_signals import Stop
stop = Stop()
"""


def test_the_exit_of_the_interpreter_closes_no_descriptor_that_a_thread_watches() -> None:
    """A consumer without `close` ended with a traceback of its heartbeats."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    assert (ran.stdout, ran.stderr) == ("False\n", "")
