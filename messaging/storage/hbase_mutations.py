"""Changes of rows, as HBase takes them: in calls of a bounded size each."""

from collections.abc import Iterable, Iterator, Mapping

from messaging.storage.hbase_layout import FAMILY
from tuff.hbase_wire import BatchMutation, Mutation

PUT_ROWS_MAX = 1_000  # rows in one call; a gateway answers it within tens of milliseconds
PUT_BYTES_MAX = 2 << 20  # bytes in one call


def put_row(row: bytes, cells: Mapping[bytes, bytes]) -> BatchMutation:
    return BatchMutation(
        row,
        [
            Mutation(isDelete=False, column=name, value=value, writeToWAL=True)
            for name, value in cells.items()
        ],
    )


def delete_row(row: bytes) -> BatchMutation:
    return BatchMutation(row, [Mutation(isDelete=True, column=FAMILY, writeToWAL=True)])


def parts(
    changes: Iterable[tuple[bytes, bytes | None]],
) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """What goes out in one call each."""
    part: list[tuple[bytes, bytes | None]] = []
    size_bytes = 0
    for row, value in changes:
        part.append((row, value))
        size_bytes += len(row) + len(value or b"")
        if len(part) >= PUT_ROWS_MAX or size_bytes >= PUT_BYTES_MAX:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
