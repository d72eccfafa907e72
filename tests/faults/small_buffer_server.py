"""The server with a LevelDB write buffer of 64 KiB, so that it soon writes tables and new logs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import server
from messaging.engines import leveldb

leveldb.WRITE_BUFFER_BYTES = 65_536

if __name__ == "__main__":
    sys.exit(server.main(sys.argv[1:]))
