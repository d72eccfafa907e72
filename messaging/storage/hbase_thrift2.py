"""Thrift2's types and connections, for writes that are forced to the disks."""

from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TSocket

thrift2: Any = thriftpy2.load(
    str(Path(__file__).with_name("hbase_data.thrift")), "hbase_data_thrift"
)
FSYNC_WAL = 4  # HBase's number

# HBase said no, and the connection is fine.
ANSWERS = (thrift2.RefusedError, thrift2.ArgumentError)


class Thrift2Connection:
    """A connection to a Thrift2 gateway, with what one of happybase's has."""

    def __init__(self, host: str, port: int, *, timeout: int) -> None:
        """Not open yet. `timeout`: milliseconds of one call."""
        socket = TSocket(host, port, socket_timeout=timeout)
        self.transport = TCyBufferedTransport(socket)
        protocol = TCyBinaryProtocol(self.transport)
        self.client = TClient(thrift2.Data, protocol)

    def open(self) -> None:
        """Raises: TException, OSError."""
        self.transport.open()

    def close(self) -> None:
        self.transport.close()
