"""The settings of Python's garbage collector for a process that serves requests."""

import gc

# Young objects that start a garbage collection. Python's own 700 are a dozen requests under way,
# whose objects are freed a moment later anyway; 10,000 are some three hundred requests.
YOUNG_COUNT_MAX = 10_000


def settle() -> None:
    """Collect garbage from now on, and leave out what was loaded so far. Objects that live until
    the end are never garbage; examining them again costs pauses."""
    gc.freeze()
    gc.set_threshold(YOUNG_COUNT_MAX, *gc.get_threshold()[1:])
    gc.enable()
