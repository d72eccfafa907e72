"""How many files of the client a call passes through: a reader has to read as many.

A budget is the number of today. A change that needs another file has to say why, here.
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import tuff

ROOT = Path(__file__).resolve().parents[2]
CLIENT = f"{ROOT / 'tuff'}/"

FILES_OF_A_PUBLISH = 7
FILES_OF_A_TRANSACTION = 13
FILES_OF_A_TRANSACTION_WITH_A_TABLE = 20
FILES_OF_A_POLL = 9
FILES_OF_A_POLL_OF_A_GROUP = 16


def files_of(work: Callable[[], object]) -> list[str]:
    """The files of the client whose functions run in this thread, after the first two times: the
    session is open then, and modules are loaded. What earlier tests left behind is collected
    before: the end of a generator of theirs would count as a call."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(CLIENT):
            found.add(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    for _ in range(2):
        work()
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return sorted(found)


def test_a_publish_keeps_its_budget(client: tuff.Client, topic: tuff.TopicId) -> None:
    found = files_of(lambda: client.publish(topic, "one apple"))

    assert len(found) <= FILES_OF_A_PUBLISH, found


def test_a_poll_keeps_its_budget(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, "one apple")

    found = files_of(lambda: client.poll(topic))

    assert len(found) <= FILES_OF_A_POLL, found


def test_a_poll_of_a_group_keeps_its_budget(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, *("one apple" for _ in range(3)))

    with client.consumer(topic, group="sellers", batch=1) as consumer:
        found = files_of(lambda: consumer.poll(wait=5))

    assert len(found) <= FILES_OF_A_POLL_OF_A_GROUP, found


def test_a_transaction_keeps_its_budget(client: tuff.Client, topic: tuff.TopicId) -> None:
    def sell() -> None:
        with client.transaction() as tx:
            tx.publish(topic, "one apple")

    found = files_of(sell)

    assert len(found) <= FILES_OF_A_TRANSACTION, found


def test_a_transaction_with_a_table_keeps_its_budget(
    client: tuff.Client, topic: tuff.TopicId, tmp_path: Path
) -> None:
    stock = tuff.TransactionalTable(str(tmp_path / "stock"))

    def sell() -> None:
        with client.transaction(stock) as tx:
            tx.publish(topic, "one apple")
            stock.put(b"apple", b"41")

    found = files_of(sell)
    stock.close()

    assert len(found) <= FILES_OF_A_TRANSACTION_WITH_A_TABLE, found
