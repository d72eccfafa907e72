"""Runs all jobs of a topic, one after the other, in a process that kills itself at a given step.

    python -m tests.pipeline.kill_job URL HOME [STEP before|after NUMBER]

HOME/job names the job that runs.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

from kernel.archive_manifest import Archive
from pipeline import archive, audit, compact, frames, job, replay_archive
from pipeline.command import run
from tests.spark.session import make_session
from tuff.blocking.topics import Topics

SOURCE, AGAIN = "jobs:source", "jobs:again"

# By the job: where its steps are looked up when it takes them.
STEPS: dict[str, dict[str, tuple[object, str]]] = {
    "archive": {
        "hold": (Topics, "hold"),
        "write": (archive, "write_files"),
        "sync": (frames, "sync_files"),
        "check": (archive, "check"),
        "move": (archive, "move"),
        "rename": (Path, "rename"),
        "record": (Archive, "record"),
        "replace": (Path, "replace"),
        "release": (Topics, "release"),
        "verify": (archive, "verify"),
        "claim": (Topics, "set_position"),
        "truncate": (Topics, "truncate"),
    },
    "compact": {
        "write": (compact, "write_files"),
        "check": (compact, "check"),
        "move": (compact, "move"),
        "rename": (Path, "rename"),
        "record": (Archive, "record"),
        "replace": (Path, "replace"),
        "sweep": (compact, "remove_unnamed_files"),
        "remove": (compact, "remove"),
    },
    "replay": {"check": (job, "check"), "hour": (replay_archive, "replay_hour")},
    "audit": {
        "check": (job, "check"),
        "put": (audit, "_replace"),
        "move": (audit, "move"),
        "letters": (audit, "not_events"),
    },
}


def jobs(url: str, home: Path) -> dict[str, list[str]]:
    """The command line of each job."""
    root = ["--root", str(home / "archive")]
    words = {
        "archive": [SOURCE, *root, "--truncate"],
        "compact": [SOURCE, *root],
        "replay": [SOURCE, *root, "--to", AGAIN],
        "audit": [SOURCE, *root, "--out", str(home / "audit")],
    }
    return {job: ["--url", url, job, *rest] for job, rest in words.items()}


def die_at(job_file: Path, job: str, step: str, when: str, number: int) -> None:
    """Kill this process and its JVM before, or after, the job takes this step so often."""
    owner, name = STEPS[job][step]
    take: Callable[..., object] = getattr(owner, name)
    taken = 0

    @wraps(take)
    def dying(*given: object, **named: object) -> object:
        nonlocal taken
        taken += job_file.read_text() == job
        is_at = taken == number and job_file.read_text() == job
        if is_at and when == "before":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        result = take(*given, **named)
        if is_at and when == "after":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    url, home, *point = arguments[0], Path(arguments[1]), *arguments[2:]
    job_file = home / "job"
    if point:
        job, step, when, number = point
        die_at(job_file, job, step, when, int(number))
    session = make_session(home / "warehouse")
    next(session)
    try:
        for job, words in jobs(url, home).items():
            aside = home / "job.new"
            aside.write_text(job)
            os.replace(aside, job_file)  # its proxy reads it at any time
            if code := run(words):
                print(f"{job} ended with {code}", file=sys.stderr)
                return 10 + code
    finally:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
