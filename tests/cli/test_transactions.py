"""`tuff tx`: transactions by hand."""

import json

import pytest

import tuff
from tests.cli.command import transactions_stopped
from tests.cli.conftest import Tuff


def topic_of(client: tuff.Client, name: str) -> tuff.TopicId:
    topic = tuff.TopicId("default", name)
    client.topics.create(topic)
    return topic


def payloads(client: tuff.Client, topic: tuff.TopicId) -> list[bytes]:
    return [message.payload for message in client.poll(topic, isolation="committed")]


def test_a_script_publishes_in_a_transaction(run: Tuff, client: tuff.Client) -> None:
    topic = topic_of(client, "scripted")
    transaction = run("tx", "start", "--client", "script", "--timeout", "20").stdout.strip()
    published = run("pub", "scripted", "one", "two", "--tx", transaction)

    before = payloads(client, topic)
    committed = run("tx", "commit", transaction)

    assert published.stdout == "published 2 messages to default:scripted\n"
    assert before == []
    assert committed.stdout == f"transaction {transaction} is committed\n"
    assert payloads(client, topic) == [b"one", b"two"]
    late = run("pub", "scripted", "three", "--tx", transaction)
    assert late.returncode == 1
    assert late.stderr.endswith(f"; next: tuff tx show {transaction}\n")


def test_an_abort_rolls_published_messages_back(run: Tuff, client: tuff.Client) -> None:
    topic = topic_of(client, "aborted")
    started = json.loads(run("tx", "start", "--type", "long", "--json").stdout)
    assert started["state"] == "in_progress"
    run("pub", "aborted", "never", "--tx", started["transactionId"])

    aborted = run("tx", "abort", started["transactionId"], "--json")

    # The writes of a long one elsewhere are unknown, so it stays on the invalid list.
    assert json.loads(aborted.stdout) == {**started, "state": "invalid"}
    assert payloads(client, topic) == []


def test_a_blocking_transaction_is_shown_with_the_command_that_ends_it(
    run: Tuff, client: tuff.Client
) -> None:
    topic = topic_of(client, "held")
    free = run("tx", "blockers", "held")
    with tuff.Client(client.url, client_id="the slow one") as slow:
        first = slow.transactions.start()
    client.publish(topic, "early")
    client.publish(topic, "a", "b", transaction=first)
    second = client.transactions.start()
    client.publish(topic, "c", transaction=second)
    client.publish(topic, "waits")

    said = run("tx", "blockers", "held")
    told = json.loads(run("tx", "blockers", "held", "--json").stdout)

    assert free.stdout == "no transaction blocks the readers of default:held\n"
    assert "the slow one" in said.stdout
    *_, counted, command = said.stdout.splitlines()
    assert counted.startswith("4 messages wait")
    assert (told["blockedBy"], told["waitingCount"]) == (str(first.transaction_id), 4)
    assert told["isCountCut"] is False
    found = [one["transactionId"] for one in told["transactions"]]
    assert found == [str(first.transaction_id), str(second.transaction_id)]

    done = run(*command.split()[1:])
    client.transactions.commit(second)

    assert done.stdout == f"transaction {first.transaction_id} is invalid\n"
    assert payloads(client, topic) == [b"early", b"c", b"waits"]


def test_the_blocking_transactions_of_all_partitions_are_shown(
    run: Tuff, client: tuff.Client
) -> None:
    """The command was refused, and an operator had to try each partition."""
    client.topics.create("default:spread", partitions=3)
    free = run("tx", "blockers", "spread")
    first, second = client.transactions.start(), client.transactions.start()
    client.publish("default:spread/0", "a", transaction=first)
    client.publish("default:spread/2", "b", transaction=second)
    client.publish("default:spread/2", "waits")

    said = run("tx", "blockers", "spread").stdout.splitlines()
    told = json.loads(run("tx", "blockers", "spread", "--json").stdout)
    one = json.loads(run("tx", "blockers", "spread/2", "--json").stdout)
    for transaction in (first, second):
        client.transactions.abort(transaction)

    assert free.stdout == (
        "no transaction blocks the readers of default:spread, in none of its partitions\n"
    )
    ids = [str(each.transaction_id) for each in (first, second)]
    assert said[-4:] == [
        "partition 0: 1 message waits, including its own; to end it without its messages:",
        f"  tuff tx invalidate {ids[0]}",
        "partition 2: 2 messages wait, including its own; to end it without its messages:",
        f"  tuff tx invalidate {ids[1]}",
    ]
    shown = [
        (each["partition"], each["blockedBy"], [tx["transactionId"] for tx in each["transactions"]])
        for each in told["partitions"]
    ]
    assert shown == [(0, ids[0], [ids[0]]), (1, None, []), (2, ids[1], [ids[1]])]
    assert (one["blockedBy"], one["waitingCount"]) == (ids[1], 2)


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


@pytest.mark.parametrize(
    ("published", "said"),
    [pytest.param(9_999, "10,000", marks=pytest.mark.slow), (10_000, "10,000 or more")],
)
def test_waiting_messages_above_the_bound_are_not_counted(
    run: Tuff, client: tuff.Client, published: int, said: str
) -> None:
    topic = topic_of(client, f"crowd-{published}")
    blocker = client.transactions.start()
    client.publish(topic, "first", transaction=blocker)
    client.publish(topic, *([b""] * published))

    told = run("tx", "blockers", topic.name).stdout
    client.transactions.abort(blocker)

    assert told.splitlines()[-2].startswith(f"{said} messages wait")


def test_a_stopped_service_names_the_status_command(run: Tuff, client: tuff.Client) -> None:
    with transactions_stopped(client.url):
        stopped = run("tx", "ls")

    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert stopped.stderr.endswith("; next: tuff status\n")
    assert run("tx", "ls").returncode == 0


def test_a_lease_is_shown_in_each_view_of_its_transaction(run: Tuff, client: tuff.Client) -> None:
    topic = topic_of(client, "leased")
    one = run("tx", "start", "--type", "long", "--lease", "600").stdout.strip()
    client.publish(topic, "held", transaction=int(one))

    renewed = json.loads(run("tx", "renew", one, "--json").stdout)
    shown = json.loads(run("tx", "show", one, "--json").stdout)
    listed = json.loads(run("tx", "ls", "--json").stdout)["inProgress"]
    blockers = run("tx", "blockers", "leased").stdout

    (mine,) = [each for each in listed if each["transactionId"] == one]
    for told in (shown, mine):
        assert (told["lease"], told["leaseExpiresAt"]) == (600, renewed["leaseExpiresAt"])
    assert "600 s, " in run("tx", "ls").stdout
    assert "600 s, " in blockers
    assert run("tx", "renew", one).stdout.startswith("the lease ends at 20")
    run("tx", "invalidate", one)
    assert json.loads(run("tx", "show", one, "--json").stdout)["lease"] is None


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


def test_an_operator_resolves_what_a_database_decided(run: Tuff, client: tuff.Client) -> None:
    topic = topic_of(client, "prepared")
    entry = tuff.connectors.PublishEntry(topic=topic, payloads=[b"paid"])
    one = client.transactions.start(client="shop")
    answer = client.transactions.prepare(one, "orders", [b"k"], [entry])

    (listed,) = json.loads(run("tx", "prepared", "--database", "orders", "--json").stdout)
    table = run("tx", "prepared").stdout
    shown = run("tx", "show", str(one.transaction_id)).stdout
    resolved = run("tx", "resolve", str(one.transaction_id), "commit").stdout

    assert listed == {
        "transactionId": str(one.transaction_id), "database": "orders", "client": "shop",
        "preparedAt": answer.prepared_at_ms, "topics": ["default:prepared"], "changeCount": 1,
        "blocksReaders": True,
    }  # fmt: skip
    assert "orders" in table
    assert "decided by" in shown
    assert resolved == f"transaction {one.transaction_id} is committed\n"
    assert payloads(client, topic) == [b"paid"]
    with pytest.raises(tuff.errors.TransactionCommittedError):
        client.transactions.resolve(one, "abort")
    assert client.transactions.prepared() == []


def test_the_command_that_settles_a_prepared_blocker_has_the_name_that_programs_use(
    run: Tuff, client: tuff.Client
) -> None:
    entry = tuff.connectors.PublishEntry(topic=topic_of(client, "waiting"), payloads=[b"paid"])
    one = client.transactions.start(client="shop")
    client.transactions.prepare(one, "my.shop.1d257feb", [], [entry])

    blockers = run("tx", "blockers", "waiting").stdout
    client.transactions.resolve(one, "abort")

    assert "  tuff sql resolve URL --database my.shop\n" in blockers


def test_the_invalid_list_is_shown_and_truncated(run: Tuff, client: tuff.Client) -> None:
    topic = topic_of(client, "invalid-list")
    carried, first, second = (client.transactions.start(timeout=600) for _ in range(3))
    client.publish(topic, "carried", transaction=carried)
    ids = [str(each.transaction_id) for each in (carried, first, second)]
    for transaction in (carried, first, second):
        client.transactions.invalidate(transaction)

    listed = json.loads(run("tx", "invalid", "--json").stdout)
    asked = run("tx", "truncate", ids[1], given="n\n")
    one = run("tx", "truncate", ids[1], ids[0], "--yes", "--json")
    rest = run("tx", "truncate", "--prunable", "--yes")
    after = json.loads(run("tx", "invalid", "--json").stdout)["invalids"]

    assert set(ids) <= set(listed["invalids"])
    assert set(ids) <= set(listed["reasons"]["invalidated"])
    assert ids[1] in listed["prunable"]
    assert asked.returncode == 130
    assert "Their rows in other stores become visible" in asked.stderr
    found = json.loads(one.stdout)
    assert found["removed"] + len(found["kept"]) == 2
    assert rest.stdout.startswith("removed ")
    assert set(ids) & set(after) == set(found["kept"]) - set(listed["prunable"])
    assert run("tx", "truncate", "--before", "2100-01-01", "--yes").returncode == 0
    refused = run("tx", "truncate", ids[0], "--prunable", "--yes")
    assert (refused.returncode, "give either IDs" in refused.stderr) == (2, True)


def test_the_invalid_list_is_a_table(run: Tuff, client: tuff.Client) -> None:
    transaction = client.transactions.start(timeout=600)
    client.transactions.invalidate(transaction)

    lines = run("tx", "invalid").stdout.splitlines()

    assert lines[1].split() == ["pointer", "reason", "prunable"]
    (row,) = [line for line in lines if str(transaction.transaction_id) in line]
    assert row.split() == [str(transaction.transaction_id), "invalidated", "yes"]
    assert row == row.rstrip()
