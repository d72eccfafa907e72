"""`tuff pub` and `tuff tail`: what they publish and print, and what a follower waits for."""

import json
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import tuff
from tests.cli.command import started, transactions_stopped
from tests.cli.conftest import Tuff
from tests.http.client import until
from tests.http.process import ServerProcess, serve


def test_published_lines_are_tailed(run: Tuff, client: tuff.Client) -> None:
    client.topics.create(tuff.TopicId("default", "lines"))

    published = run("pub", "lines", given="one\n\nthree\n")
    tailed = run("tail", "lines", "--json")

    assert published.stdout == "published 3 messages to default:lines\n"
    assert [json.loads(line)["payload"] for line in tailed.stdout.splitlines()] == [
        "one", "", "three",
    ]  # fmt: skip
    assert run("pub", "lines", "four", "five", "--json").returncode == 0
    last = run("tail", "lines", "-n", "2").stdout.splitlines()
    assert [line.split("Z  ")[1] for line in last] == ["four", "five"]


def test_tail_starts_at_the_given_position(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("default", "starts")
    client.topics.create(topic)
    second = client.publish(topic, "one", "two").ids[-1]

    def tailed(start: str) -> list[str]:
        lines = run("tail", "starts", "--from", start, "--json").stdout.splitlines()
        return [json.loads(line)["payload"] for line in lines]

    assert tailed("earliest") == tailed("10m") == ["one", "two"]
    assert tailed(second.hex()) == ["two"]
    assert tailed("latest") == []


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_tail_shows_committed_messages_and_with_all_the_state_of_each(
    run: Tuff, client: tuff.Client, partitions: int
) -> None:
    topic = tuff.TopicId("default", f"states-{partitions}")
    client.topics.create(topic, partitions=partitions)
    first = topic.partition(partitions - 1)
    client.publish(first, "plain")
    aborted, committed = client.transactions.start(), client.transactions.start()
    client.publish(first, "aborted", transaction=aborted)
    client.store(first, "stored 1", "stored 2", transaction=committed)
    client.publish_stored(first, transaction=committed)
    client.transactions.abort(aborted)
    client.transactions.commit(committed)
    opened = client.transactions.start()
    client.publish(first, "open", transaction=opened)

    default = run("tail", topic.name, "--json").stdout.splitlines()
    shown = run("tail", topic.name, "--all", "--json").stdout.splitlines()

    assert [json.loads(line)["payload"] for line in default] == ["plain", "stored 1", "stored 2"]
    assert [(json.loads(line)["payload"], json.loads(line)["state"]) for line in shown] == [
        ("plain", "committed"), ("aborted", "rolled_back"), ("stored 1", "committed"),
        ("stored 2", "committed"), ("open", "in_progress"),
    ]  # fmt: skip
    assert "state" not in json.loads(default[0])
    lines = run("tail", topic.name, "--all").stdout.splitlines()
    assert lines[1].endswith("Z  rolled back  aborted")
    assert lines[4].endswith("Z  in progress  open")
    client.transactions.abort(opened)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_limit_alone_prints_the_newest_messages_that_the_reader_receives(
    run: Tuff, client: tuff.Client, partitions: int
) -> None:
    topic = tuff.TopicId("default", f"newest-{partitions}")
    client.topics.create(topic, partitions=partitions)
    for number in range(12):
        tags = ["even"] if number % 2 == 0 else []
        client.publish(
            topic.partition(number % partitions), tuff.NewMessage(f"{number}", tags=tags)
        )
    for number in range(40):
        transaction = client.transactions.start()
        client.publish(topic.partition(number % partitions), "rolled back", transaction=transaction)
        client.transactions.abort(transaction)

    def tailed(*options: str) -> list[str]:
        lines = run("tail", topic.name, "--json", *options).stdout.splitlines()
        return [json.loads(line)["payload"] for line in lines]

    assert tailed("-n", "3") == ["9", "10", "11"]
    assert tailed("-n", "3", "--tags", "even") == ["6", "8", "10"]
    assert tailed("-n", "12") == tailed("-n", "1000") == [f"{number}" for number in range(12)]
    assert tailed("-n", "3", "--all") == ["rolled back"] * 3
    assert tailed("-n", "41", "--all") == ["11", *["rolled back"] * 40]
    assert tailed("-n", "2", "--from", "earliest") == ["0", "1"]


@pytest.mark.parametrize("before", [["one", "two"], []])
def test_the_newest_messages_before_a_blocking_transaction_are_printed_with_its_name(
    run: Tuff, client: tuff.Client, before: list[str]
) -> None:
    topic = tuff.TopicId("default", f"newest-blocked-{len(before)}")
    client.topics.create(topic)
    if before:
        client.publish(topic, *before)
    opened = client.transactions.start()
    client.publish(topic, "open", transaction=opened)
    client.publish(topic, *["behind"] * 20)

    done = run("tail", topic.name, "-n", "1")

    assert [line.split("Z  ")[1] for line in done.stdout.splitlines()] == before[1:]
    assert done.stderr.count(f"blocked by transaction {opened.transaction_id}") == 1
    client.transactions.abort(opened)


def test_a_batch_is_one_publish(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("default", "batches")
    client.topics.create(topic)

    done = run("pub", "batches", "--batch", "2", "--ttl", "60", "--json", given="1\n2\n3\n")

    first, second, third = client.poll(topic)
    told = json.loads(done.stdout)
    assert told == {"published": 3, "firstId": first.id.hex(), "lastId": third.id.hex()}
    assert first.timestamp_ms == second.timestamp_ms


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


def test_a_tail_whose_output_is_closed_ends_without_an_error(
    server: ServerProcess, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "long")
    client.topics.create(topic)
    client.publish(topic, *(["x" * 1000] * 500))

    with started("tail", "long", url=server.url) as tail:
        tail.out.readline()
        tail.out.close()

        assert (tail.errors.read(), tail.process.wait(60)) == ("", 0)


def test_a_failed_publish_prints_no_count(run: Tuff) -> None:
    for form in ((), ("--json",)):
        done = run("pub", "nowhere", "m", *form)

        assert (done.returncode, done.stdout) == (1, "")


def test_messages_published_before_an_error_are_counted(run: Tuff, client: tuff.Client) -> None:
    client.topics.create(tuff.TopicId("default", "partly"))
    lines = "first\n" + "x" * (17 << 20)

    done = run("pub", "partly", "--batch", "1", given=lines)

    assert (done.returncode, done.stdout) == (1, "published 1 message to default:partly\n")


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
        out, _ = follower.process.communicate(timeout=60)

    assert out.endswith("  decided later\n")


def test_a_follower_survives_a_stopped_transaction_service(
    client: tuff.Client, server: ServerProcess
) -> None:
    topic = tuff.TopicId("default", "patient")
    client.topics.create(topic)
    tx = client.transactions.start()
    client.publish(topic, "there", transaction=tx)
    command = ["tail", "patient", "-f", "--from", "earliest", "--isolation", "committed"]
    with ExitStack() as running:
        with transactions_stopped(server.url):
            follower = running.enter_context(started(*command, "-n", "1", url=server.url))
            said = follower.errors.readline()
        client.transactions.commit(tx)
        out, rest = follower.process.communicate(timeout=60)

    reader = "tuff: the subscription of default:patient"
    assert said.startswith(f"{reader} waits for the server: the transaction service is stopped")
    assert out.endswith("  there\n")
    assert rest == f"{reader} continues: the server answers again\n"
    assert follower.process.returncode == 0


def test_a_tail_without_follow_fails_at_an_undecided_message_while_the_service_is_stopped(
    run: Tuff, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "impatient")
    client.topics.create(topic)
    client.publish(topic, "plain")

    with transactions_stopped(client.url):
        decided = run("tail", "impatient", "--isolation", "committed")
    client.publish(topic, "undecided", transaction=client.transactions.start())
    with transactions_stopped(client.url):
        done = run("tail", "impatient", "--isolation", "committed")

    assert (decided.returncode, decided.stdout[-7:]) == (0, " plain\n")
    assert done.returncode == 1
    assert "the transaction service is stopped" in done.stderr


def test_a_follower_survives_a_restart_and_shows_every_message_once(tmp_path: Path) -> None:
    topic = tuff.TopicId("default", "outlives")
    server = serve(tmp_path)
    with tuff.Client(server.url) as client:
        client.topics.create(topic)
        client.publish(topic, "before")
    command = ["tail", "outlives", "-f", "--from", "earliest"]
    with started(*command, url=server.url) as follower:
        assert follower.out.readline().endswith("  before\n")

        server.kill()
        reader = "tuff: the subscription of default:outlives"
        assert follower.errors.readline().startswith(f"{reader} waits for the server: ")
        with serve(tmp_path, port=server.port) as server, tuff.Client(server.url) as client:
            client.publish(topic, "after")
            assert follower.out.readline().endswith("  after\n")
            said = follower.errors.readline()
            assert said == f"{reader} continues: the server answers again\n"

            assert follower.interrupt() == 130
        assert follower.out.read() == ""


def test_a_pipe_is_published_over_a_restart(tmp_path: Path) -> None:
    topic = tuff.TopicId("default", "piped")
    server = serve(tmp_path)
    with tuff.Client(server.url) as client:
        client.topics.create(topic)
        with started("pub", "piped", url=server.url, given=subprocess.PIPE) as publisher:
            assert publisher.process.stdin is not None
            publisher.process.stdin.write("before\n")
            publisher.process.stdin.flush()
            until(lambda: len(client.poll(topic)) == 1)

            server.end()
            publisher.process.stdin.write("after\n")
            publisher.process.stdin.close()
            with serve(tmp_path, port=server.port):
                assert publisher.process.wait(30) == 0
                assert [each.payload for each in client.poll(topic)] == [b"before", b"after"]
            assert publisher.out.read() == "published 2 messages to default:piped\n"


def test_partitions_are_tailed_in_one_order_or_alone(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("default", "partitions")
    client.topics.create(topic, partitions=3)
    for index in range(7):
        client.publish(topic.partition(index * 2 % 3), f"{index}")
    client.topics.update(topic, partitions=2)

    def tailed(*options: str) -> list[tuple[int | None, str]]:
        lines = run("tail", "partitions", "--json", *options).stdout.splitlines()
        found = [json.loads(line) for line in lines]
        return [(each.get("partition"), each["payload"]) for each in found]

    everything = [(index * 2 % 3, f"{index}") for index in range(7)]
    assert tailed() == everything
    assert tailed("-n", "3") == everything[4:]
    assert tailed("--from", "earliest", "-n", "3") == everything[:3]
    assert tailed("--from", "latest") == []
    assert tailed("--partition", "2") == [(None, "1"), (None, "4")]
    assert tailed("--partition", "0") == [(None, "0"), (None, "3"), (None, "6")]
    assert run("tail", "default:partitions:1").stdout.splitlines()[0].endswith("  2")
    assert run("tail", "partitions", "-n", "1").stdout.split("  ")[0] == "0"
    missing = run("tail", "partitions", "--partition", "9")
    assert missing.returncode == 1
    assert "default:partitions has 3 partitions, the last of which is" in missing.stderr
    refused = run("pub", "default:partitions:9", "x")
    assert refused.stderr.endswith("; next: tuff topics show default:partitions\n")
    refused = run("pub", "partitions:9", "x")  # of the namespace `partitions`
    assert "named with its namespace, as default:partitions:9" in refused.stderr


def test_a_follower_reads_partitions_that_are_added(
    server: ServerProcess, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "growing")
    client.topics.create(topic)
    client.publish(topic, "one")
    follower = ["tail", "growing", "--follow", "--from", "earliest", "-n", "4", "--json"]
    with started(*follower, url=server.url) as process:
        assert json.loads(process.out.readline())["payload"] == "one"
        client.topics.update(topic, partitions=2)
        client.publish(topic.partition(1), "two")
        client.publish(topic.partition(0), "three")
        client.publish(topic.partition(1), "four")
        found = [
            json.loads(line) for line in process.process.communicate(timeout=60)[0].splitlines()
        ]

    assert [(each.get("partition"), each["payload"]) for each in found] == [
        (1, "two"), (0, "three"), (1, "four"),
    ]  # fmt: skip


def test_messages_are_published_with_attributes_and_selected_by_tags(
    run: Tuff, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "attributes")
    client.topics.create(topic)
    options = ["--key", "apple", "--tag", "retail", "--tag", "new", "--header", "a=1=2"]

    done = run("pub", "attributes", "sold", "again", *options, "--header", "a=", "--header", "b=é")
    plain = run("pub", "attributes", "plain")

    assert (done.returncode, plain.returncode) == (0, 0)
    first, _, last = client.poll(topic)
    assert (first.key, first.tags) == (b"apple", ("retail", "new"))
    assert first.headers == (("a", b"1=2"), ("a", b""), ("b", "é".encode()))
    assert (last.key, last.tags, last.headers) == (None, (), ())
    shown = [json.loads(line) for line in run("tail", "attributes", "--json").stdout.splitlines()]
    assert [{**each, "id": "", "timestamp": 0} for each in shown[1:]] == [
        {
            "id": "", "timestamp": 0, "payload": "again", "key": "apple",
            "tags": ["retail", "new"], "headers": {"a": ["1=2", ""], "b": "é"},
        },
        {"id": "", "timestamp": 0, "payload": "plain", "key": None, "tags": [], "headers": {}},
    ]  # fmt: skip
    selected = run("tail", "attributes", "--tags", "none|new,retail", "--json").stdout
    assert [json.loads(line)["payload"] for line in selected.splitlines()] == ["sold", "again"]
    assert run("tail", "attributes", "--tags", "none").stdout == ""


def test_a_publish_without_ids_prints_none(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("default", "levels")
    client.topics.create(topic)

    none = run("pub", "levels", "1", "2", "--ack", "none", "--json")
    received = run("pub", "levels", "3", "--ack", "received", "--json")
    assert run("pub", "levels", "4").returncode == 0

    assert json.loads(none.stdout) == {"published": 2, "firstId": None, "lastId": None}
    found = client.poll(topic)
    assert [message.payload for message in found] == [b"1", b"2", b"3", b"4"]
    assert json.loads(received.stdout)["lastId"] == found[2].id.hex()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["pub", "levels", "x", "--header", "traceparent"], "give its name and its value"),
        (["pub", "levels", "x", "--ack", "all"], "'all' is not one of"),
        (["pub", "levels", "x", "--ack", "none", "--tx", "5"], "only for messages without --tx"),
        (["pub", "levels", "x", "--tag", "two words"], '"two words" has not'),
        (["pub", "levels", "x", "--header", "a,b=1"], "without a comma"),
        (["tail", "levels", "--tags", "a b"], '"a b" has not'),
    ],
)
def test_a_wrong_attribute_level_or_selection_is_named(
    run: Tuff, client: tuff.Client, command: list[str], reason: str
) -> None:
    with suppress(tuff.TopicExistsError):
        client.topics.create(tuff.TopicId("default", "levels"))

    done = run(*command)

    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tail_of_partitions_ends_at_a_blocking_transaction(
    run: Tuff, client: tuff.Client
) -> None:
    topic = tuff.TopicId("default", "blocked-partitions")
    client.topics.create(topic, partitions=2)
    client.publish(topic.partition(1), "before")
    tx = client.transactions.start()
    client.publish(topic.partition(0), "undecided", transaction=tx)
    client.publish(topic.partition(1), "behind")

    done = run("tail", "blocked-partitions", "--isolation", "committed", "--json")

    assert [json.loads(line)["payload"] for line in done.stdout.splitlines()] == ["before"]
    client.transactions.abort(tx)
