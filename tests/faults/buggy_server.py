"""The server with three bugs: in a call, in a periodic task, and in a writer.

The writer has its bug once there is a file `bug` in the working directory.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import server
from messaging.write.write_queue import WriteQueue
from process.components import Components
from tx.service import TransactionManager

BUG = Path("bug")

_write_all = WriteQueue._write_all


async def _fail(*_arguments: object) -> None:
    raise ValueError("this is a bug")


async def _fail_sometimes(*arguments: object) -> None:
    await (_fail if BUG.exists() else _write_all)(*arguments)


Components.sweep = _fail
TransactionManager.stop_service = _fail
WriteQueue._write_all = _fail_sometimes

if __name__ == "__main__":
    sys.exit(server.main(sys.argv[1:]))
