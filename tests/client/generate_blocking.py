"""Generates the blocking client from the asyncio one: `make blocking`, decision 0009.

    python -m tests.client.generate_blocking      rewrites the generated files of tuff/blocking

The text is rewritten, docstrings included: `await` and `async` go, and so does `Async` before a
name.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "client",
    "context",
    "groups",
    "share_groups",
    "sql",
    "subscriber",
    "topics",
    "transactions",
    "typed_topic",
)
HEADER = "# Generated from tuff/aio/{}.py by `make blocking`; change that one.\n"
FIXES = ("--fix", "--unsafe-fixes", "--select", "F401,I,UP028")  # what the rewriting leaves

PATTERNS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\btuff\.aio\.driver\b", "tuff.flows_and_repeated_calls"),
    (r"\btuff\.aio\b", "tuff.blocking"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"  # noq[a]: ASYNC109 - .*", ""),
)
# What a docstring says of one of the two alone. Each has to be found.
PHRASES = (
    ("the tasks of one event loop", "threads"),
    ("one task at a time", "one thread at a time"),
    ("in an `async with`", "in a `with`"),
    ("Belongs to one task,", "Belongs to one thread,"),
    ("print(await futures[0])", "print(futures[0].result())"),
)


def source_of(name: str) -> Path:
    return ROOT / "tuff" / "aio" / f"{name}.py"


def target_of(name: str) -> Path:
    return ROOT / "tuff" / "blocking" / f"{name}.py"


def blocking(text: str) -> str:
    """The blocking form of a source; not formatted yet."""
    for phrase, instead in PHRASES:
        text = text.replace(phrase, instead)
    for pattern, instead in PATTERNS:
        text = re.sub(pattern, instead, text)
    return text


def generated(name: str) -> str:
    """What the file of that name in tuff/blocking has to be."""
    text = HEADER.format(name) + blocking(source_of(name).read_text())
    fixed = _ruff("check", "--quiet", *FIXES, text=text, name=name)
    return _ruff("format", text=fixed, name=name)


def _ruff(*arguments: str, text: str, name: str) -> str:
    command = [
        sys.executable,
        "-m",
        "ruff",
        *arguments,
        "--stdin-filename",
        str(target_of(name)),
        "-",
    ]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def main() -> None:
    for name in NAMES:
        target_of(name).write_text(generated(name))


if __name__ == "__main__":
    main()
