"""What a task of a read does: poll its slices to their ends, one Arrow batch for each reply."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pyspark_tuff.columns import batch_of, shown_name
from pyspark_tuff.offsets import BEGINNING
from pyspark_tuff.options import ReadOptions
from pyspark_tuff.planning import Slice, View, Work, report_loss

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.client import Client
    from tuff.replies import Poll

CLIENT_NAME = "pyspark-read"


def read_work(
    work: Work, view: View, options: ReadOptions, schema: StructType
) -> Iterator["RecordBatch"]:
    """The messages of a task, in the order of its slices.

    Raises:
        DataLossError: what was there when the read was planned has expired.
        TuffError: the server can't be reached, or refuses; Spark tries the task again.
    """
    with options.connection.connect(CLIENT_NAME) as client:
        for piece in work.slices:
            name = shown_name(piece.topic, options.namespace)
            for poll in _polls(client, piece, view, options):
                yield batch_of(poll, schema, topic=name, generation=piece.generation)


def _polls(client: "Client", piece: Slice, view: View, options: ReadOptions) -> Iterator["Poll"]:
    place, expected = piece.start, piece.first
    while True:
        poll = _poll(client, piece, place, view, options)
        if expected is not None and (not poll or poll[0].id.hex() != expected):
            report_loss(
                f"messages of {piece.topic} from {expected} on expired between plan and read",
                fails=options.fail_on_data_loss,
            )
        expected = None
        if poll:
            yield poll
        if poll.caught_up:
            return
        assert poll.next_id.hex() > place, "a read within decided rows is never held"
        place = poll.next_id.hex()


def _poll(client: "Client", piece: Slice, place: str, view: View, options: ReadOptions) -> "Poll":
    return client.poll(
        piece.topic,
        place or None,
        inclusive=place == BEGINNING,
        limit=options.fetch_size,
        transaction=view.snapshot,
        isolation=None if view.snapshot else view.isolation.value,
        undecided="skip" if view.snapshot else "hold",
        through=piece.end,
    )
