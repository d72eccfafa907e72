"""Which versions of a row nobody can read any more; pure (docs/formats.md, TransactionalTable)."""

from collections.abc import Iterable, Sequence

from tuff.protocol.pointers import holds

BATCH_ROWS = 1000  # rows dropped in one synced batch; writers wait for no longer than that


def droppable(
    versions: Iterable[tuple[int, bool]], *, bound: int, invalids: Sequence[int]
) -> list[int]:
    """The pointers to drop of one row's versions, given as (pointer, is a delete marker), newest
    first; in the order in which they must go.

    Every committed version up to `bound` is visible to every reader.
    """
    dropped = []
    is_covered = False
    for pointer, is_marker in versions:
        if holds(invalids, pointer):
            dropped.append(pointer)
        elif pointer <= bound:
            # Everybody sees this one or a newer one. A marker hides only what goes with it.
            if is_covered or is_marker:
                dropped.append(pointer)
            is_covered = True
    # Oldest first: a crash that leaves an old version must leave the marker that hides it.
    return dropped[::-1]
