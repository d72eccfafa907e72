"""The command that an error message names next can be run, wherever the options were typed."""

import shlex
from pathlib import Path

import pytest

import tuff
from tests.cli.command import tuff_command
from tests.cli.conftest import Tuff
from tests.http.process import ServerProcess


def advised(said: str) -> list[str]:
    """The words of the command behind `next: `."""
    return shlex.split(said.rpartition("; next: ")[2])


@pytest.mark.parametrize(
    "typed",
    [
        ("topics", "create", "advice:there"),
        ("topics", "create", "--ttl", "60", "advice:there"),
    ],
)
def test_the_next_command_names_the_topic_before_or_behind_options(
    run: Tuff, client: tuff.Client, typed: tuple[str, ...]
) -> None:
    topic = tuff.TopicId("advice", "there")
    if "there" not in client.topics.list("advice"):
        client.topics.create(topic)

    done = run(*typed)

    assert done.returncode == 1
    assert advised(done.stderr) == ["tuff", "topics", "show", "advice:there"]
    assert run(*advised(done.stderr)[1:]).returncode == 0


def test_the_next_command_names_the_transaction_behind_options(
    run: Tuff, client: tuff.Client
) -> None:
    transaction = client.transactions.start()
    client.transactions.abort(transaction)
    one = str(transaction.transaction_id)
    client.topics.create(tuff.TopicId("default", "t"))

    for typed in (("tx", "commit", "--json", one), ("pub", "--ttl=60", "--tx", one, "t", "m")):
        assert advised(run(*typed).stderr) == ["tuff", "tx", "show", one]


def test_the_next_command_lists_prepared_transactions(run: Tuff, client: tuff.Client) -> None:
    transaction = client.transactions.start()
    client.transactions.prepare(transaction, "db")

    refused = run("tx", "commit", str(transaction.transaction_id))
    client.transactions.resolve(transaction, "abort")

    assert advised(refused.stderr) == ["tuff", "tx", "prepared"]


def test_the_next_command_names_the_server_that_refused(
    server: ServerProcess, client: tuff.Client
) -> None:
    client.topics.create(tuff.TopicId("advice", "elsewhere"))
    expected = ["tuff", "topics", "show", "advice:elsewhere", "--url", server.url]

    for typed in (
        ("topics", "create", "advice:elsewhere", "--url", server.url),
        ("topics", "create", "--url", server.url, "advice:elsewhere"),
        ("--url", server.url, "topics", "create", "advice:elsewhere"),
    ):
        done = tuff_command(*typed, url="http://127.0.0.1:1")
        assert advised(done.stderr) == expected


def test_the_next_command_has_the_token_file_and_shows_no_token(
    server: ServerProcess, client: tuff.Client, tmp_path: Path
) -> None:
    client.topics.create(tuff.TopicId("advice", "guarded"))
    file = tmp_path / "token"
    file.write_text("hunter2")
    words = ["topics", "create", "advice:guarded"]
    expected = ["tuff", "topics", "show", "advice:guarded"]

    with_file = tuff_command(*words, "--token-file", file, url=server.url)
    with_token = tuff_command("--token", "hunter2", *words, url=server.url)
    file.write_text("")
    with_empty = tuff_command(*words, "--token-file", file, url=server.url)
    file.write_text("hunter2\nhunter3\n")
    with_two = tuff_command(*words, "--token-file", file, url=server.url)

    assert advised(with_file.stderr) == [*expected, "--token-file", str(file)]
    assert advised(with_token.stderr) == [*expected, "--token", "TOKEN"]
    assert f"{file} has no token: it is empty" in with_empty.stderr
    assert f"{file} has more than one word" in with_two.stderr
    assert "hunter" not in with_two.stderr


@pytest.mark.parametrize(
    "typed", [("rm", "--yes"), ("show",), ("set", "--ttl", "5")], ids=lambda words: words[0]
)
def test_a_missing_topic_is_not_to_be_created_except_by_pub(
    run: Tuff, typed: tuple[str, ...]
) -> None:
    done = run("topics", *typed, "advice:nope")

    assert done.returncode == 1
    assert "create it" not in done.stderr
    assert advised(done.stderr) == ["tuff", "topics", "ls"]


def test_publishing_to_a_missing_topic_names_the_command_that_creates_it(run: Tuff) -> None:
    done = run("pub", "--ttl", "5", "advice:made", "m")

    assert done.returncode == 1
    assert run(*advised(done.stderr)[1:]).returncode == 0
    assert run("pub", "--ttl", "5", "advice:made", "m").returncode == 0


def test_an_untrusted_server_is_not_followed_by_advice_to_start_one(server: ServerProcess) -> None:
    done = tuff_command("topics", "ls", url=server.url.replace("http:", "https:"))

    assert done.returncode == 3
    assert "tuff serve" not in done.stderr
