"""One owner per directory, within a process and between processes (protocol §8); and a close of an
engine that waits for its calls in flight."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from tuff_storage.disk.locks import (
    LOCK_FILE,
    CallsInFlight,
    DirectoryLock,
    DirectoryLockedError,
    kept_from_owners,
)

HOLD = """
import sys
from pathlib import Path
from tuff_storage.disk.locks import DirectoryLock
DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process_holds(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the directory until it is killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


def test_a_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)

    again = tmp_path / ".." / tmp_path.name
    with pytest.raises(DirectoryLockedError) as refused:
        DirectoryLock(again)

    assert str(refused.value) == f"{again} is already open in this process ({os.getpid()})"
    lock.close()


def test_a_symbolic_link_does_not_avoid_the_lock(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    lock = DirectoryLock(tmp_path / "data")

    with pytest.raises(DirectoryLockedError, match="already open in this process"):
        DirectoryLock(tmp_path / "link")

    lock.close()


def test_a_directory_is_free_again_after_close(tmp_path: Path) -> None:
    DirectoryLock(tmp_path).close()
    DirectoryLock(tmp_path).close()


def test_a_refused_lock_takes_nothing_from_the_owner(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    for _ in range(2):
        with pytest.raises(DirectoryLockedError):
            DirectoryLock(tmp_path)

    assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    lock.close()


def test_another_process_is_refused_with_the_directory_and_the_owner(tmp_path: Path) -> None:
    with (
        another_process_holds(tmp_path) as holder,
        pytest.raises(DirectoryLockedError) as refused,
    ):
        DirectoryLock(tmp_path)

    assert str(refused.value) == (
        f"{tmp_path} is in use by process {holder.pid}; stop that server, or give another directory"
    )


def test_a_reader_of_the_directory_is_not_reported_as_its_last_owner(tmp_path: Path) -> None:
    DirectoryLock(tmp_path).close()

    with kept_from_owners(tmp_path), pytest.raises(DirectoryLockedError) as refused:
        DirectoryLock(tmp_path)

    assert str(refused.value) == (
        f"{tmp_path} is being read, as `tuff fsck`, `backup`, `salvage` and `restore` do; "
        "try again when they are done, or give another directory"
    )
    DirectoryLock(tmp_path).close()


def test_a_reader_of_an_owned_directory_is_refused_with_the_owner(tmp_path: Path) -> None:
    with (
        another_process_holds(tmp_path) as holder,
        pytest.raises(DirectoryLockedError, match=f"in use by process {holder.pid};"),
        kept_from_owners(tmp_path),
    ):
        pass


def test_a_lock_ends_with_its_process_and_the_file_that_is_left_locks_nothing(
    tmp_path: Path,
) -> None:
    with another_process_holds(tmp_path):
        pass

    assert (tmp_path / LOCK_FILE).exists()
    DirectoryLock(tmp_path).close()


def test_a_directory_that_is_not_there_is_an_error_and_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectoryLock(tmp_path / "missing")

    (tmp_path / "missing").mkdir()
    DirectoryLock(tmp_path / "missing").close()


class TooLateError(Exception):
    """A call came after the close."""


def test_closing_waits_for_the_calls_under_way() -> None:
    users = CallsInFlight(closed=TooLateError)
    steps: list[str] = []
    is_in, may_leave = Event(), Event()

    def use() -> None:
        with users.using():
            is_in.set()
            may_leave.wait()
            steps.append("left")

    def close() -> None:
        users.close()
        steps.append("closed")

    user, closer = Thread(target=use), Thread(target=close)
    user.start()
    is_in.wait()
    closer.start()
    while not users.is_closing:
        pass
    with pytest.raises(TooLateError), users.using():
        pass
    may_leave.set()
    user.join()
    closer.join()

    assert steps == ["left", "closed"]


def test_only_the_first_close_returns_true() -> None:
    users = CallsInFlight(closed=TooLateError)

    assert [users.close(), users.close()] == [True, False]


def test_a_call_that_fails_is_over_too() -> None:
    users = CallsInFlight(closed=TooLateError)

    with pytest.raises(ZeroDivisionError), users.using():
        raise ZeroDivisionError

    assert users.close()
