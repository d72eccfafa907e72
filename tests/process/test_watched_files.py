"""Files that are read again when they change."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from process.watched_files import WatchedFileError, WatchedFiles

T = TypeVar("T")


async def in_this_thread(call: Callable[[], T]) -> T:
    return call()


async def test_a_file_that_could_not_be_read_is_read_once_it_can_be(tmp_path: Path) -> None:
    # As after a `chown`: neither the time of the last change nor the size differs.
    file = tmp_path / "file"
    file.write_text("old")
    is_readable = True

    def read() -> str:
        if not is_readable:
            raise WatchedFileError("permission denied")
        return file.read_text()

    watched = WatchedFiles([file], read, name="file")
    is_readable = False
    file.write_text("a new value")
    assert not await watched.refresh(in_this_thread)
    assert watched.value == "old"
    is_readable = True

    assert await watched.refresh(in_this_thread)

    assert watched.value == "a new value"
    assert watched.failure is None
