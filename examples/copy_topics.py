"""Copies the topics of a server to another one, for example of a single server to a new cluster.

    python copy_topics.py SOURCE TARGET [NAMESPACE …]

SOURCE and TARGET are URLs; of a cluster, several separated by commas. No client may write to SOURCE
meanwhile. A topic gets its properties and its committed messages that have not expired, in their
order. They get new ids, and live for the topic's time to live from now on. Holds, positions and the
state of transactions are not copied. A topic that TARGET already has is an error: delete it there
to copy it again.
"""

import argparse
from collections.abc import Iterator

import tuff

BATCH_COUNT = 1_000  # messages of one read


def topics_of(client: tuff.Client, namespaces: list[str]) -> Iterator[tuff.TopicId]:
    for namespace in namespaces or client.topics.namespaces():
        for name in client.topics.list(namespace):
            yield tuff.TopicId(namespace, name)


def copy(source: tuff.Client, target: tuff.Client, topic: tuff.TopicId) -> int:
    """Copy one topic; returns the number of its messages."""
    properties = dict(source.topics.get(topic).properties)
    target.topics.create(topic, ttl=int(properties.pop("ttl")), properties=properties)
    count, is_complete, behind = 0, False, None
    with target.publisher(topic) as publisher:
        while not is_complete:
            poll = source.poll(topic, behind, inclusive=behind is None, limit=BATCH_COUNT)
            if poll.blocked_by is not None:
                raise SystemExit(
                    f"transaction {poll.blocked_by} is in progress at SOURCE; end it, delete "
                    f"{topic} at TARGET, and copy it again"
                )
            for sent in [publisher.send(each.payload) for each in poll]:
                sent.result()
            count, is_complete, behind = count + len(poll), poll.caught_up, poll.next_id
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
