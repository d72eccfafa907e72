"""Reads the messages that tests have written, or waits until they have expired."""

import tuff


def read(client: tuff.Client, topic: tuff.TopicId, isolation: str = "committed") -> list[bytes]:
    """The payloads of a whole topic, in order."""
    return [message.payload for message in read_messages(client, topic, isolation)]


def read_messages(
    client: tuff.Client, topic: tuff.TopicId, isolation: str = "committed"
) -> list[tuff.Message]:
    """The messages of a whole topic, in order."""
    found: list[tuff.Message] = []
    poll = client.poll(topic, isolation=isolation)
    while poll:
        found += poll
        poll = client.poll(topic, poll.next_id, inclusive=False, isolation=isolation)
    return found


def expire(client: tuff.Client, topic: tuff.TopicId) -> None:
    """Wait until all messages of the topic have expired, on the clock of the server."""
    while client.offsets(topic).earliest is not None:
        pass
