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
]
