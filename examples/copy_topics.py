"""Copies the topics of a server to another one, for example of a single server to a new cluster.

    python copy_topics.py SOURCE TARGET [NAMESPACE …]

SOURCE and TARGET are URLs; of a cluster, several separated by commas. No client may write to SOURCE
meanwhile. A topic gets its properties, as many partitions, and its committed messages that have not
expired, in their order. They get new ids, and live for the topic's time to live from now on. Holds,
positions and the state of transactions are not copied. A topic that TARGET already has is an error:
delete it there to copy it again.
"""

import argparse
from collections.abc import Iterator

import tuff


def topics_of(client: tuff.Client, namespaces: list[str]) -> Iterator[str]:
    for namespace in namespaces or client.topics.namespaces():
        for name in client.topics.list(namespace):
            yield f"{namespace}:{name}"


def copy(source: tuff.Client, target: tuff.Client, topic: str) -> int:
    """Copy one topic; returns the number of its messages."""

    def require_decided(_: int, poll: tuff.Poll) -> None:
        if poll.blocked_by is not None:
            raise SystemExit(
                f"transaction {poll.blocked_by} is in progress at SOURCE; end it, delete {topic} "
                "at TARGET, and copy it again"
            )

    info = source.topics.get(topic)
    properties = dict(info.properties)
    target.topics.create(
        topic,
        ttl=int(properties.pop("ttl")),
        properties=properties,
        partitions=len(info.partitions),
    )
    messages = source.merged(topic, follow=False, on_outage="raise", on_poll=require_decided)
    count = 0
    with target.publisher() as publisher:
        for _, each in messages:
            publisher.publish(
                topic, each.payload, key=each.key, tags=each.tags, headers=each.headers
            )
            count += 1
    return count


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("namespaces", metavar="NAMESPACE", nargs="*")
    given = parser.parse_args()
    with tuff.Client(given.source) as source, tuff.Client(given.target, retries=20) as target:
        try:
            for topic in topics_of(source, given.namespaces):
                print(f"{topic}: {copy(source, target, topic)} messages", flush=True)
        except tuff.TuffError as error:
            raise SystemExit(f"not all topics were copied: {error}") from None


if __name__ == "__main__":
    main()
