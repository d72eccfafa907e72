"""`HBaseTransactionalTable`: a participant whose versioned rows are in HBase (design §2, §7).

A version is a cell; the cell's timestamp is the write pointer.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tuff.tables.row_format import TABLE_ID_BYTES
from tuff.tables.versioned_table import VersionedTable
from tuff.tables.work import BUFFER_BYTES_MAX

if TYPE_CHECKING:
    from tuff.hbase_gateway import Connection

GRACE_S = 3_600.0  # seconds; no gateway carries out a write later than that

# Linux's other clocks stop while the machine is suspended. With them, a process would not look for
# an announcement after a suspension, although it was carried out long ago. Other systems lack
# BOOTTIME.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_new_id = partial(os.urandom, TABLE_ID_BYTES)


def _elapsed_s() -> float:
    return time.clock_gettime(_CLOCK)


class HBaseTransactionalTable(VersionedTable):
    """A table of rows, keys and values of bytes, in HBase. Many processes may have it open.

    It is a participant: pass it to `client.transaction(table)`. See `VersionedTable` for its
    methods. Keys have at most 32,000 bytes, values 8 MiB.

        stock = tuff.HBaseTransactionalTable("127.0.0.1:9090", "stock")
        with client.transaction(stock):
            stock.put(b"apple", b"41")

    While a transaction has an open scan, all its writes stay in memory.
    """

    def __init__(
        self,
        connection: "str | Sequence[str] | Connection",
        name: str,
        *,
        buffer_bytes: int = BUFFER_BYTES_MAX,
        grace_s: float = GRACE_S,
        new_id: Callable[[], bytes] = _new_id,
        elapsed_s: Callable[[], float] = _elapsed_s,
    ) -> None:
        """Open the table of that name, or create one.

        `connection`: the HOST:PORT of a Thrift gateway, several of them, or a happybase connection,
        of which address and table prefix are used; each thread opens a connection of its own. When
        a transaction has more than `buffer_bytes` of writes in memory, they are stored before it
        commits. `compact` announces what it removes, and a later call removes it when `grace_s`
        seconds have passed; no gateway may hold a write for longer. `new_id` returns 16 random
        bytes; `elapsed_s` is a monotonic clock that runs while the machine is suspended.

        Raises:
            StorageUnavailableError: no gateway answers, or HBase can't use the table.
            BadRequestError: the table would lose versions, or a gateway's address is not valid.
            ModuleNotFoundError: happybase is not installed.
        """
        try:
            from tuff.tables.hbase_versions import opened
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"HBaseTransactionalTable needs {error.name}, which is not installed; "
                "pip install 'tuff-messaging[hbase]'",
                name=error.name,
            ) from None
        versions = opened(connection, name, grace_s=grace_s, new_id=new_id, elapsed_s=elapsed_s)
        super().__init__(name, versions, buffer_bytes=buffer_bytes)
