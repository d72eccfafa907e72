"""`tuff sinks`: how far writers are."""

import json

import tuff
from tests.cli.conftest import Tuff


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
