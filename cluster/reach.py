"""Whether this server reaches HBase and the shared directory, and when it ends because another
server does (decision 0042, A server that can't do its work).

The same checks judge all servers. A server ends only if its own check fails for long, and all the
time that of another one succeeds. So a server whose checks succeed never ends, and if the checks of
all fail, none does.
"""

import logging
from collections.abc import Callable, Iterable

from kernel.event_loop import InThread, Spawn
from metadata.member_records import ServerInfo

log = logging.getLogger(__name__)

# Seconds for which a read of the directory counts, as for a check of HBase (0038). So a file that
# is removed between the listing and the read changes nothing.
READ_COUNTS_S = 5.0


def why_replaceable(
    *, hbase: bool, directory: bool, leads: bool, others: Iterable[ServerInfo]
) -> str | None:
    """Why another server can do what this one can't, in a sentence; None: it can't. `hbase` and
    `directory` say what this server reaches, and `others` are the other live members.

    A draining server does not count, since it is about to stop. A server that does not reach HBase
    can't lead either.
    """
    able = [each for each in others if each.reaches_hbase and not each.is_draining]
    if not hbase and able:
        return (
            "this server does not reach HBase, and the server "
            f"{able[0].server_id} does and can take its topics over"
        )
    able = [each for each in able if each.reaches_directory]
    if leads and not directory and able:
        return (
            "this server leads transactions and does not reach the shared directory, and the "
            f"server {able[0].server_id} does and can lead"
        )
    return None


def may_lead(*, hbase: bool, directory: bool, others: Iterable[ServerInfo]) -> bool:
    """Whether a server that reaches this much stands for election. It leaves the lead to another
    one that reaches everything; if there is none, it may as well lead itself."""
    return (hbase and directory) or not any(
        each.reaches_hbase and each.reaches_directory for each in others
    )


class Reach:
    """What this server reaches, as of the last `look`; nothing before the first one. Lives on the
    event loop.

    `reaches_hbase` says whether a check of HBase succeeded lately. `read_store_id` lists the
    directory, and reads the id of the store in a file there; None if no file has one. It runs in a
    thread, once at a time: on a network file system that hangs, it never returns.
    """

    hbase = False
    directory = False

    def __init__(
        self,
        *,
        reaches_hbase: Callable[[], bool],
        read_store_id: Callable[[], str | None],
        in_thread: InThread,
        spawn: Spawn,
        elapsed_s: Callable[[], float],
    ) -> None:
        self._reaches_hbase = reaches_hbase
        self._read_store_id = read_store_id
        self._in_thread = in_thread
        self._spawn = spawn
        self._elapsed_s = elapsed_s
        self._is_reading = False
        self._read_s: float | None = None  # the begin of the newest read that succeeded
        self._replaceable_count = 0  # comparisons without a break

    def look(self, store_id: str) -> None:
        """Note what is reached now; call it every second. Transaction files of another store, and
        an empty directory, do not count as the shared directory."""
        self.hbase = self._reaches_hbase()
        read_s = self._read_s
        self.directory = read_s is not None and self._elapsed_s() - read_s < READ_COUNTS_S
        if not self._is_reading:
            self._is_reading = True
            self._spawn(self._read(store_id))

    @property
    def has_lost_directory(self) -> bool:
        """Whether the directory was reached before, and is not any more."""
        return self._read_s is not None and not self.directory

    @property
    def has_all(self) -> bool:
        """Whether both are reached."""
        return self.hbase and self.directory

    def why_to_end(
        self, others: Iterable[ServerInfo] | None, *, leads: bool, count_max: int
    ) -> str | None:
        """Why this server ends, in a sentence; None: it stays. It ends once it was replaceable at
        more than `count_max` comparisons without a break. Call it after each look; `others` are the
        other live members as of now, or None where they are not known."""
        reason = None
        if others is not None:
            reason = why_replaceable(
                hbase=self.hbase, directory=self.directory, leads=leads, others=others
            )
        # Comparisons are counted and not seconds, in which the process may have been paused. And
        # they begin when another server is able: after an outage of all, one server is the first.
        self._replaceable_count = 0 if reason is None else self._replaceable_count + 1
        return reason if self._replaceable_count > count_max else None

    async def _read(self, store_id: str) -> None:
        began_s = self._elapsed_s()
        try:
            found = await self._in_thread(self._read_store_id)
        except OSError as error:
            log.debug("the shared directory can't be read: %s", error)
        else:
            if found == store_id:
                self._read_s = began_s
        finally:
            self._is_reading = False
