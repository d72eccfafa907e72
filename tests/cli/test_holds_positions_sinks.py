"""`tuff holds`, `tuff positions` and `tuff sinks` against a real server."""

import json

import tuff
from tests.cli.conftest import Tuff


def test_a_hold_is_set_listed_and_ended(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "held")
    client.topics.create(topic)
    published = client.publish(topic, "a", "b")
    last = published.ids[-1].hex()

    made = json.loads(
        run("holds", "set", "cli:held", "job", "--from", last, "--max-age", "9", "--json").stdout
    )

    assert (made["name"], made["from"]) == ("job", last)
    assert made["expiresAt"] - made["setAt"] == 9_000
    assert json.loads(run("holds", "ls", "cli:held", "--json").stdout) == [made]
    assert last in run("holds", "ls", "cli:held").stdout
    moved = run("holds", "set", "cli:held", "job", "--from", "latest").stdout
    assert last < moved.removeprefix("cli:held is held from "), "it is behind all messages"
    assert run("holds", "rm", "cli:held", "job").stdout == "removed job of cli:held\n"
    again = run("holds", "rm", "cli:held", "job")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.endswith("; next: tuff holds ls cli:held\n")


def test_a_position_is_set_listed_and_forgotten(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "read")
    client.topics.create(topic)
    last = client.publish(topic, "a").ids[-1].hex()

    made = json.loads(run("positions", "set", "cli:read", "job", last, "--json").stdout)

    assert (made["name"], made["position"], made["generation"]) == ("job", last, 1)
    assert json.loads(run("positions", "ls", "cli:read", "--json").stdout) == [made]
    assert run("positions", "ls", "cli:read").stdout.startswith(f"cli:read ends with {last}\n")
    assert run("positions", "rm", "cli:read", "job").stdout == "removed job of cli:read\n"
    again = run("positions", "rm", "cli:read", "job")
    assert again.stderr.endswith("; next: tuff positions ls cli:read\n")


def test_sinks_are_listed_shown_and_forgotten(run: Tuff, client: tuff.Client) -> None:
    done = client.sinks.begin("orders/query-7", 41, "run-1")
    assert done.transaction is not None
    client.transactions.commit(done.transaction)
    begun = client.sinks.begin("b", 0, "run-2")
    assert begun.transaction is not None

    listed = json.loads(run("sinks", "ls", "--json").stdout)
    shown = json.loads(run("sinks", "show", "orders/query-7", "--json").stdout)

    assert [(one["sink"], one["epoch"], one["state"]) for one in listed] == [
        ("b", 0, "in_progress"), ("orders/query-7", 41, "committed"),
    ]  # fmt: skip
    assert shown == listed[1]
    assert (shown["runId"], shown["transactionId"]) == (
        "run-1", str(done.transaction.transaction_id),
    )  # fmt: skip
    assert "orders/query-7" in run("sinks", "ls").stdout
    assert "run-1" in run("sinks", "show", "orders/query-7").stdout

    assert run("sinks", "rm", "b", "--yes").stderr.endswith("; next: tuff tx ls\n")
    assert run("sinks", "rm", "orders/query-7", given="n\n").returncode == 130
    assert run("sinks", "rm", "orders/query-7", "--yes").stdout == "removed orders/query-7\n"
    gone = run("sinks", "show", "orders/query-7")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.endswith("; next: tuff sinks ls\n")
    client.transactions.invalidate(begun.transaction)
    assert json.loads(run("sinks", "rm", "b", "--yes", "--json").stdout)["removed"] is True
