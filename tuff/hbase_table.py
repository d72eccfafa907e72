"""`HBaseTransactionalTable`: versioned rows in HBase as a participant (design §2, §7).

A version is a cell, and its timestamp the write pointer it was written under.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tuff.table_rows import TABLE_ID_BYTES
from tuff.table_work import BUFFER_BYTES_MAX
from tuff.versioned_table import VersionedTable

if TYPE_CHECKING:
    from tuff.hbase_gateway import Connection

GRACE_S = 3_600.0  # seconds; nothing that a gateway was told is done later

# Other clocks of Linux stand still while the machine is suspended, and by them an announcement that
# was acted on long ago was not yet due to be looked up. Elsewhere there is only the other one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_new_id = partial(os.urandom, TABLE_ID_BYTES)


def _elapsed_s() -> float:
    return time.clock_gettime(_CLOCK)


class HBaseTransactionalTable(VersionedTable):
    """Rows of bytes by bytes in a table of HBase, which many processes may have open.

    A participant: name it in `client.transaction(table)`. What it does is `VersionedTable`'s. Keys
    have 32,000 bytes at most, values 8 MiB.

        stock = tuff.HBaseTransactionalTable("127.0.0.1:9090", "stock")
        with client.transaction(stock):
            stock.put(b"apple", b"41")

    While one of its scans is open, a transaction's writes stay in memory, however many.
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
        """Open the table of that name, or make one.

        `connection` says where HBase is: the HOST:PORT of a Thrift gateway, several of them, or a
        happybase connection, whose address and table prefix are taken; each thread is given one of
        its own. A transaction's writes beyond `buffer_bytes` are stored before it commits. What
        `compact` announces it does when `grace_s` seconds have gone by, in a later call; no gateway
        may hold a write for longer. `new_id` gives 16 random bytes, `elapsed_s` is a clock that
        only goes forward, also while the machine is suspended.

        Raises:
            StorageUnavailableError: no gateway answers, or HBase can't use the table.
            BadRequestError: the table would lose versions, or a gateway's address is none.
            ModuleNotFoundError: happybase is not installed.
        """
        try:
            from tuff.hbase_opening import opened
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"HBaseTransactionalTable needs {error.name}, which is not installed; "
                "pip install 'tuff-messaging[hbase]'",
                name=error.name,
            ) from None
        versions = opened(connection, name, grace_s=grace_s, new_id=new_id, elapsed_s=elapsed_s)
        super().__init__(name, versions, buffer_bytes=buffer_bytes)
