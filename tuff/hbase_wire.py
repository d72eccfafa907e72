"""The types of HBase's Thrift interface, which happybase makes of its description when it loads."""

import happybase
from Hbase_thrift import (  # there once happybase is loaded, and not before
    AlreadyExists,
    BatchMutation,
    ColumnDescriptor,
    IllegalArgument,
    Mutation,
    TScan,
)
from Hbase_thrift import IOError as HBaseError
from thriftpy2.thrift import TException


def thrift1_connection(host: str, port: int, *, timeout: int) -> happybase.Connection:
    """One that is not open yet; `timeout`: milliseconds of one call."""
    return happybase.Connection(host, port, timeout=timeout, autoconnect=False)


__all__ = [
    "AlreadyExists",
    "BatchMutation",
    "ColumnDescriptor",
    "HBaseError",
    "IllegalArgument",
    "Mutation",
    "TException",
    "TScan",
    "happybase",
    "thrift1_connection",
]
