"""A writer that never reaches its commit: `catalog.py` starts it, and kills it half-way.

python catalog_writer.py URL DATABASE TOPIC TIMEOUT
"""

import sys
from pathlib import Path

from catalog_rows import Entry, VersionedRows
from catalog_scan import Change

import tuff

PATHS = [b"half-done/one.txt", b"half-done/two.txt", b"half-done/three.txt"]


def main() -> None:
    url, database, topic, timeout_s = sys.argv[1:]
    client = tuff.Client(url, client_id="unlucky-writer")
    rows = VersionedRows(Path(database))

    # The steps of `with client.transaction(rows)`, one by one, so that it can be killed in between.
    transaction = client.transactions.start(timeout=float(timeout_s))
    rows.start_tx(transaction)
    found = [Change("added", path, Entry(4, 0, "of a file that does not exist")) for path in PATHS]
    for change in found:
        rows.put(change.path, change.entry)
    client.transactions.can_commit(transaction, rows.tx_changes(transaction))
    rows.commit_tx(transaction)
    announcements = [change.announcement() for change in found]
    client.publish(topic, *announcements, transaction=transaction)

    print(transaction.transaction_id, flush=True)
    sys.stdin.read()  # it is killed here
    client.transactions.commit(transaction, rows.tx_changes(transaction))


if __name__ == "__main__":
    main()
