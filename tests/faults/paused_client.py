"""A client for tests that suspend it in a transaction; arguments: URL, table, timeout in seconds.

It writes a row, publishes under the transaction, prints "in" with the transaction's id, and waits
for a line on its standard input before it commits. Then it prints the outcome and the row.
"""

import sys

import tuff

TOPIC = tuff.TopicId("pauses", "topic")
ROW = b"row"


def main(url: str, directory: str, timeout_s: str) -> None:
    with (
        tuff.Client(url, client_id="paused") as client,
        tuff.TransactionalTable(directory) as table,
    ):
        try:
            with client.transaction(table, timeout=float(timeout_s)) as tx:
                table.put(ROW, b"of the paused one")
                client.publish(TOPIC, "of the paused one", transaction=tx.transaction)
                tx.publish(TOPIC, "with the commit of the paused one")
                say(f"in {tx.transaction.transaction_id}")
                sys.stdin.readline()
        except tuff.TuffError as error:
            say(f"refused {error.code}")
        else:
            say("committed")
        with client.transaction(table):
            say(f"row {table.get(ROW)!r}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
