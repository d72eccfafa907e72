"""Saves the metadata that a cluster has in ZooKeeper to a file, and restores them.

    python cluster_metadata.py save FILE HOSTS [ROOT]
    python cluster_metadata.py restore FILE HOSTS [ROOT]

HOSTS is HOST:PORT,HOST:PORT, and ROOT the path in `cluster.metadata`, by default /tuff. All servers
of the cluster must be stopped. Restore the messages and the transaction files of the same stop with
them (docs/cluster.md). `restore` needs a ROOT without metadata: delete the old ones first, or
choose another ROOT and set it in `cluster.metadata`.
"""

import argparse
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

CONNECT_S_MAX = 10.0  # seconds
HEAD = {"tuff": "cluster metadata", "format": 1}


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=hosts)
    try:
        client.start(CONNECT_S_MAX)
        yield client
    except KazooTimeoutError:
        raise SystemExit(f"no ZooKeeper answers at {hosts}") from None
    finally:
        client.stop()
        client.close()


def save(client: KazooClient, root: str, file: Path) -> int:
    """Write all entries to a new file, and return their number. It has one line for each, with the
    path below the root, and ends with their number."""
    try:
        if client.get_children(f"{root}/sessions"):
            raise SystemExit("a server of the cluster is running; stop all of them first")
        entries = list(_entries(client, root, "entries"))
    except NoNodeError:
        raise SystemExit(f"there are no metadata of a cluster below {root}") from None
    lines = [HEAD, *entries, {"entries": len(entries)}]
    with file.open("x", encoding="utf-8") as written:
        written.writelines(json.dumps(each) + "\n" for each in lines)
    return len(entries)


def _entries(client: KazooClient, root: str, path: str) -> Iterator[dict[str, str]]:
    data, _ = client.get(f"{root}/{path}")
    yield {"path": path, "data": base64.b64encode(data).decode()}
    for name in sorted(client.get_children(f"{root}/{path}")):
        yield from _entries(client, root, f"{path}/{name}")


def restore(client: KazooClient, root: str, file: Path) -> int:
    """Create the entries of a file, and return their number."""
    head, *entries, end = map(json.loads, file.read_text("utf-8").splitlines() or ["{}", "{}"])
    if head != HEAD or end != {"entries": len(entries)}:
        raise SystemExit(f"{file} is not a complete copy of metadata; use another one")
    if client.exists(f"{root}/entries") is not None:
        raise SystemExit(f"there are metadata below {root}; delete them, or choose another root")
    client.ensure_path(root)
    for each in entries:  # a parent comes before its children
        client.create(f"{root}/{each['path']}", base64.b64decode(each["data"]))
    return len(entries)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("save", "restore"))
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("hosts", metavar="HOSTS")
    parser.add_argument("root", metavar="ROOT", nargs="?", default="/tuff")
    given = parser.parse_args()
    with connected(given.hosts) as client:
        try:
            work = save if given.command == "save" else restore
            print(f"{work(client, given.root, given.file)} entries")
        except OSError as error:
            raise SystemExit(f"{given.file}: {error.strerror}") from None


if __name__ == "__main__":
    main()
