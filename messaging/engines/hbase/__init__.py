"""The message store in HBase, reached through its Thrift gateways."""
