"""A consumer to be killed: it counts its messages in a table, and prints each step.

python tests/client/consumer.py URL TABLE NAMESPACE:TOPIC COUNT BATCH
"""

import sys
from collections.abc import Sequence

import tuff

ROUND_COUNT_MAX = 10_000  # batches; with more the consumer makes no progress


def say(step: str) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()


class PrintingPositions(tuff.TablePositions):
    """Prints when a hook begins and ends, so that the process can be killed between any two."""

    def __init__(self, table: tuff.TransactionalTable, name: str) -> None:
        super().__init__(table, name)
        for hook in ("start_tx", "tx_changes", "commit_tx", "post_commit"):
            setattr(self, hook, self._printing(hook, getattr(table, hook)))

    def _printing(self, name: str, hook: object) -> object:
        def run(*arguments: object) -> object:
            say(name)
            result = hook(*arguments)
            say(f"{name} done")
            return result

        return run


def main() -> None:
    url, path, topic_name, count, batch = sys.argv[1:]
    namespace, _, name = topic_name.partition(":")
    topic = tuff.TopicId(namespace, name)
    table = tuff.TransactionalTable(path)
    done = int(count)

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        for message in messages:
            before = int(table.get(message.payload) or b"0")
            table.put(message.payload, b"%d" % (before + 1))
        tx.publish(tuff.TopicId(namespace, f"{name}-echo"), *(m.payload for m in messages))

    with tuff.Client(url) as client:
        positions = PrintingPositions(table, "consumer")
        subscriber = client.subscriber(
            topic, process, positions=positions, batch=int(batch), wait=0
        )
        for _ in range(ROUND_COUNT_MAX):
            if not subscriber.step():
                with client.transaction(table):
                    if sum(1 for _ in table.scan()) >= done:
                        break
    table.close()
    say("finished")


if __name__ == "__main__":
    main()
