"""The commands against a real server, as processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import tuff
from tests.cli.command import started
from tests.cli.conftest import Tuff
from tests.http.process import ServerProcess


def test_a_topic_is_created_shown_listed_and_removed(run: Tuff) -> None:
    created = run("topics", "create", "cli:life", "--ttl", "60", "--property", "owner=me")
    assert (created.returncode, created.stdout) == (0, "created cli:life, generation 1\n")

    twice = run("topics", "create", "cli:life")
    assert twice.returncode == 1
    assert twice.stderr.endswith("; next: tuff topics show cli:life\n")

    shown = json.loads(run("topics", "show", "cli:life", "--json").stdout)
    assert shown == {
        "namespace": "cli",
        "name": "life",
        "generation": 1,
        "properties": {"ttl": "60", "owner": "me"},
        "earliest": None,
        "end": None,
    }
    assert json.loads(run("topics", "ls", "cli", "--json").stdout) == [
        {"namespace": "cli", "name": "life"}
    ]
    for answer in ("n\n", ""):
        refused = run("topics", "rm", "cli:life", given=answer)
        assert refused.returncode == 130
        assert refused.stderr.endswith("tuff: nothing was done; --yes does it without a question\n")
    assert run("topics", "rm", "cli:life", "--yes").returncode == 0
    again = run("topics", "show", "cli:life")
    assert again.returncode == 1
    assert again.stderr.startswith("tuff: ")
    assert "tuff topics" in again.stderr
    assert again.stderr.count("\n") == 1


def test_properties_are_changed_one_by_one(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "set")
    client.topics.create(topic, ttl=60, properties={"owner": "me", "team": "red"})

    done = run("topics", "set", "cli:set", "--ttl", "30", "--property", "owner=you", "--json")
    run("topics", "set", "cli:set", "--unset", "team")

    assert json.loads(done.stdout)["properties"] == {"ttl": "30", "owner": "you", "team": "red"}
    assert client.topics.get(topic).properties == {"ttl": "30", "owner": "you"}
    for contradiction in (("--ttl", "5", "--unset", "ttl"), ("--ttl", "5", "--property", "ttl=6")):
        assert run("topics", "set", "cli:set", *contradiction).returncode == 2
    assert client.topics.get(topic).properties == {"ttl": "30", "owner": "you"}
    nothing = run("topics", "set", "cli:set")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.endswith("; next: tuff topics set --help\n")


def test_setting_a_property_keeps_the_default_ttl(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "default-ttl")
    client.topics.create(topic)
    before = client.topics.get(topic).properties["ttl"]

    run("topics", "set", "cli:default-ttl", "--property", "owner=you")

    assert client.topics.get(topic).properties == {"ttl": before, "owner": "you"}


def test_published_lines_are_tailed(run: Tuff, client: tuff.Client) -> None:
    client.topics.create(tuff.TopicId("default", "lines"))

    published = run("pub", "lines", given="one\n\nthree\n")
    tailed = run("tail", "lines", "--json")

    assert published.stdout == "published 3 messages to default:lines\n"
    assert [json.loads(line)["payload"] for line in tailed.stdout.splitlines()] == [
        "one", "", "three",
    ]  # fmt: skip
    assert run("pub", "lines", "four", "five", "--json").returncode == 0
    last = run("tail", "lines", "-n", "4").stdout.splitlines()[-1]
    assert last.endswith("Z  four")


def test_tail_starts_at_the_given_position(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("default", "starts")
    client.topics.create(topic)
    second = client.publish(topic, "one", "two").last_id

    def tailed(start: str) -> list[str]:
        lines = run("tail", "starts", "--from", start, "--json").stdout.splitlines()
        return [json.loads(line)["payload"] for line in lines]

    assert tailed("earliest") == tailed("10m") == ["one", "two"]
    assert tailed(second.hex()) == ["two"]
    assert tailed("latest") == []


def test_a_batch_is_one_publish(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("default", "batches")
    client.topics.create(topic)

    done = run("pub", "batches", "--batch", "2", "--ttl", "60", "--json", given="1\n2\n3\n")

    first, second, third = client.poll(topic)
    told = json.loads(done.stdout)
    assert told == {"published": 3, "firstId": first.id.hex(), "lastId": third.id.hex()}
    assert first.timestamp == second.timestamp


def test_a_snapshot_is_taken(run: Tuff, server: ServerProcess) -> None:
    taken = json.loads(run("snapshot", "take", "--json").stdout)

    assert taken["file"].startswith("snapshot.")
    assert taken["bytes"] > 0
    assert run("snapshot", "take").stdout.startswith("wrote snapshot.")


def test_a_follower_names_the_blocking_transaction_and_continues_after_it(
    server: ServerProcess, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "followed")
    client.topics.create(topic)
    transaction = client.transactions.start()
    client.publish(topic, "from the transaction", transaction=transaction)
    command = ["tail", "followed", "--from", "earliest", "-f", "--isolation", "committed"]
    with started(*command, url=server.url) as follower:
        said = follower.errors.readline()
        assert f"blocked by transaction {transaction.transaction_id}," in said
        client.transactions.commit(transaction)
        assert follower.out.readline().endswith("Z  from the transaction\n")
        client.publish(topic, "plain")
        assert follower.out.readline().endswith("Z  plain\n")

        assert follower.interrupt() == 130


def test_transactions_are_listed_and_shown(run: Tuff, client: tuff.Client) -> None:
    transaction = client.transactions.start(client="lister")

    listed = json.loads(run("tx", "ls", "--json").stdout)
    assert [one["client"] for one in listed["inProgress"]] == ["lister"]
    assert str(transaction.transaction_id) in run("tx", "ls").stdout
    client.transactions.abort(transaction)
    shown = run("tx", "show", str(transaction.transaction_id))
    assert "aborted" in shown.stdout
    unknown = run("tx", "show", "1")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "tuff tx ls" in unknown.stderr


def test_a_tail_whose_output_is_closed_ends_without_an_error(
    server: ServerProcess, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "long")
    client.topics.create(topic)
    client.publish(topic, *(["x" * 1000] * 500))

    with started("tail", "long", url=server.url) as tail:
        tail.out.readline()
        tail.out.close()

        assert (tail.errors.read(), tail.process.wait(10)) == ("", 0)


def test_serve_runs_the_server_in_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tuff.cli", "serve", "--port", "0", "--data", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tuff ready on http://127.0.0.1:")
        process.terminate()
        assert process.wait(15) == 0


def test_a_failed_publish_prints_no_count(run: Tuff) -> None:
    for form in ((), ("--json",)):
        done = run("pub", "nowhere", "m", *form)

        assert (done.returncode, done.stdout) == (1, "")


def test_messages_published_before_an_error_are_counted(run: Tuff, client: tuff.Client) -> None:
    client.topics.create(tuff.TopicId("default", "partly"))
    lines = "first\n" + "x" * (17 << 20)

    done = run("pub", "partly", "--batch", "1", given=lines)

    assert (done.returncode, done.stdout) == (1, "published 1 message to default:partly\n")


def test_a_count_of_one_is_singular(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("singular", "one")
    client.topics.create(topic)
    transaction = client.transactions.start()
    client.publish(topic, "waits", transaction=transaction)

    said = [
        run("topics", "ls", "singular").stdout,
        run("tx", "ls").stdout,
        run("tx", "blockers", "singular:one").stdout,
    ]
    client.transactions.abort(transaction)

    assert said[0].startswith("1 topic\n")
    assert said[1].startswith("1 transaction in progress\n")
    assert "\n1 message waits, " in said[2]


def test_latest_is_behind_what_a_committed_reader_can_receive(
    run: Tuff, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "latest")
    client.topics.create(topic)

    client.publish(topic, "before")
    transaction = client.transactions.start()
    client.publish(topic, "decided later", transaction=transaction)
    command = ["tail", "latest", "-f", "-n", "1", "--isolation", "committed"]
    with started(*command, url=client.url) as follower:
        assert "blocked by transaction" in follower.errors.readline()
        client.transactions.commit(transaction)
        out, _ = follower.process.communicate(timeout=30)

    assert out.endswith("  decided later\n")


def test_a_follower_survives_a_stopped_transaction_service(
    client: tuff.Client, server: ServerProcess
) -> None:
    topic = tuff.TopicId("default", "patient")
    client.topics.create(topic)
    client.publish(topic, "there")
    service(client, "stop")
    command = ["tail", "patient", "-f", "--from", "earliest", "--isolation", "committed"]
    with started(*command, "-n", "1", url=server.url) as follower:
        said = follower.errors.readline()
        service(client, "start")
        out, rest = follower.process.communicate(timeout=30)

    assert said.startswith("tuff: waiting for the server: the transaction service is stopped")
    assert out.endswith("  there\n")
    assert (rest, follower.process.returncode) == ("tuff: the server answers again\n", 0)


def test_a_tail_without_follow_fails_while_the_service_is_stopped(
    run: Tuff, client: tuff.Client
) -> None:
    client.topics.create(tuff.TopicId("default", "impatient"))
    service(client, "stop")
    done = run("tail", "impatient", "--isolation", "committed")
    service(client, "start")

    assert (done.returncode, done.stdout) == (1, "")


def service(client: tuff.Client, action: str) -> None:
    url = f"{client.url}/v1/transactions/service/{action}"
    urlopen(Request(url, method="POST")).close()
