"""What every user of a machine may do with a file, by its mode."""

import stat
from pathlib import Path

READ, WRITE = stat.S_IROTH, stat.S_IWOTH
_NAMES = ((READ, "read"), (WRITE, "write"))


def rights_of_others(file: Path, unwanted: int) -> str | None:
    """The unwanted rights that users other than the owner and its group have: `read`, `write` or
    `read and write`. None: they have none of them, or the file can't be examined. Blocks.

    Rights of the group are not examined: a service often reads its secrets through its group.
    """
    try:
        found = file.stat().st_mode & unwanted
    except OSError:
        return None
    return " and ".join(name for right, name in _NAMES if found & right) or None


def rights_within(directory: Path) -> str | None:
    """The rights of every user in a directory, as `rights_of_others`. None: this directory or one
    above keeps the users out. Blocks."""
    try:
        absolute = directory.resolve()
        modes = [each.stat().st_mode for each in (absolute, *absolute.parents)]
    except OSError:
        return None
    if not all(mode & stat.S_IXOTH for mode in modes):
        return None
    # The names of the files are known, so entering the directory is enough to read them.
    return rights_of_others(directory, READ | WRITE) or "read"
