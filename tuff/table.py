"""`TransactionalTable`: versioned rows in LevelDB as a participant (design §2, §7)."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tuff.table_rows import TABLE_ID_BYTES
from tuff.table_versions import VersionStore
from tuff.table_work import BUFFER_BYTES_MAX
from tuff.versioned_table import VersionedTable

_new_id = partial(os.urandom, TABLE_ID_BYTES)


class TransactionalTable(VersionedTable):
    """Rows of bytes by bytes in a directory, which is this process's alone until `close`.

    A participant: name it in `client.transaction(table)`. What it does is `VersionedTable`'s.

        stock = tuff.TransactionalTable("data/stock")
        with client.transaction(stock):
            stock.put(b"apple", b"41")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        buffer_bytes: int = BUFFER_BYTES_MAX,
        new_id: Callable[[], bytes] = _new_id,
    ) -> None:
        """Open the table of a directory, or make one.

        A transaction's writes beyond `buffer_bytes` go to disk, in one batch each time, before it
        commits. `new_id` gives the 16 bytes that tell the table's rows from those of others in
        conflicts; it is asked for once, and stored.

        Raises:
            StorageUnavailableError: somebody else has it open, or LevelDB can't open it.
            BadRequestError: the directory holds something else.
        """
        versions = VersionStore(Path(path), new_id=new_id)
        super().__init__(os.fspath(path), versions, buffer_bytes=buffer_bytes)
