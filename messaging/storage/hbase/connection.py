"""Connections to the Thrift gateways of the settings: Thrift1, and Thrift2 for forced writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TSocket

from messaging.storage.hbase.settings import HBaseSettings
from tuff.hbase_gateway import Addresses, Gateways

thrift2: Any = thriftpy2.load(str(Path(__file__).with_name("data.thrift")), "hbase_data_thrift")
FSYNC_WAL = 4  # HBase's number

# Errors by which HBase refuses a call; the connection stays usable.
THRIFT2_REFUSALS = (thrift2.RefusedError, thrift2.ArgumentError)


class Thrift2Connection:
    """A connection to a Thrift2 gateway, with the interface of a happybase connection."""

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


def gateways_of(
    settings: HBaseSettings,
    *,
    elapsed_s: Callable[[], float],
    addresses: Addresses | None = None,
    timeout_s: float | None = None,
    **others: Any,
) -> Gateways:
    """Gateways without a connection yet.

    `elapsed_s`: a monotonic clock; `addresses`: default the Thrift1 gateways of the settings;
    `timeout_s`: of one call, default that of the settings; `others`: arguments of `Gateways`.
    """
    return Gateways(
        addresses or Addresses(settings.addresses()),
        timeout_s=settings.timeout_s if timeout_s is None else timeout_s,
        idle_s=settings.idle_s,
        elapsed_s=elapsed_s,
        **others,
    )
