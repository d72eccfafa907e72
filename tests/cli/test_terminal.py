"""Output at a terminal: progress, colours and completion."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

import tuff
from tests.cli.command import tuff_command
from tests.http.process import ServerProcess

LINES = "line\n" * 6_000


def at_terminal(server: ServerProcess, *arguments: str, given: str, **more: str) -> str:
    """What a command writes to a terminal that is its standard error."""
    # A program without a terminal's name, as this one under a runner, gets no bar.
    surroundings: Mapping[str, str] = {**os.environ, "TUFF_URL": server.url, "TERM": "xterm"}
    plain = {name: value for name, value in surroundings.items() if name != "NO_COLOR"}
    near, far = os.openpty()
    with os.fdopen(near, "rb", buffering=0) as screen, os.fdopen(far, "wb") as errors:
        subprocess.run(
            [sys.executable, "-m", "tuff_cli", *arguments],
            env={**plain, **more},
            input=given.encode(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            timeout=60,
            check=False,
        )
        errors.write(b"END")
        errors.flush()
        seen = b""
        while not seen.endswith(b"END"):
            seen += screen.read(1 << 16)
    return seen.removesuffix(b"END").decode()


def test_a_long_input_has_a_progress_bar_and_a_short_one_has_none(
    server: ServerProcess, client: tuff.Client
) -> None:
    client.topics.create(tuff.TopicId("default", "bars"))

    assert " messages" in at_terminal(server, "pub", "bars", given=LINES)
    assert at_terminal(server, "pub", "bars", given="line\n") == ""


def test_a_pipe_gets_no_progress_bar(server: ServerProcess, client: tuff.Client) -> None:
    client.topics.create(tuff.TopicId("default", "pipes"))

    done = subprocess.run(
        [sys.executable, "-m", "tuff_cli", "pub", "pipes", "--url", server.url],
        input=LINES,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("published 6000 messages to default:pipes\n", "")


@pytest.mark.parametrize(("value", "is_colored"), [("", True), ("1", False)])
def test_colours_are_switched_off_by_the_environment(
    server: ServerProcess, client: tuff.Client, *, value: str, is_colored: bool
) -> None:
    topic = tuff.TopicId("default", f"colours-{is_colored}")
    client.topics.create(topic)
    transaction = client.transactions.start()
    client.publish(topic, "held", transaction=transaction)

    said = at_terminal(
        server, "tail", topic.name, "--isolation", "committed", given="", NO_COLOR=value
    )

    client.transactions.abort(transaction)
    assert "blocked by transaction" in said
    assert ("\x1b[" in said) is is_colored


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(shell: str) -> None:
    assert f"_TUFF_COMPLETE={shell}_complete" in tuff_command("completion", shell).stdout


def test_a_shell_gets_the_matching_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuff_cli"],
        env={
            **os.environ,
            "_TUFF_COMPLETE": "bash_complete",
            "COMP_WORDS": "tuff tx ",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "plain,blockers" in done.stdout.splitlines()
