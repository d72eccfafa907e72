"""How far a streaming query of Spark has written, as its checkpoint tells.

    DIR/offsets/N   "v1", a line about the batch, then for each source a line: JSON, or "-"
    DIR/commits/N   is there once batch N is written

The newest batch that is committed says where everything is written up to. Nothing here needs Spark.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tuff.protocol.errors import TuffError
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark_tuff.offsets import Position

OFFSETS_VERSION = "v1"


class CheckpointError(TuffError):
    """A directory is no checkpoint of a query that reads topics, or a later Spark wrote it."""

    code = "bad_checkpoint"


def written_up_to(checkpoint: Path) -> "dict[TopicId, Position]":
    """The last place of each topic that the query has written; none before its first batch.

    Raises: CheckpointError.
    """
    from pyspark_tuff.offsets import OffsetError, from_json

    newest = max(_batches(checkpoint / "commits"), default=None)
    if newest is None:
        if not (checkpoint / "offsets").is_dir():
            raise CheckpointError(f"{checkpoint} is no checkpoint of a query: it has no offsets")
        return {}
    found: dict[TopicId, Position] = {}
    for line in _sources(checkpoint / "offsets" / str(newest)):
        try:
            found |= from_json(json.loads(line))
        except (OffsetError, ValueError):
            continue  # of another source: a query may read several
    if not found:
        raise CheckpointError(f"the query of {checkpoint} reads no topics")
    return found


def _batches(directory: Path) -> Iterator[int]:
    if directory.is_dir():
        yield from (int(file.name) for file in directory.iterdir() if file.name.isdecimal())


def _sources(file: Path) -> list[str]:
    try:
        version, _, *sources = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read: {error}") from None
    if version != OFFSETS_VERSION:
        raise CheckpointError(
            f"{file} is of version {version[:20]!r}, and {OFFSETS_VERSION} is known"
        )
    return [line for line in sources if line != "-"]
