// What `tuff hbase` asks of a Thrift2 gateway: the few calls that it uses, with the numbers of fields
// that HBase gave them. The data goes through Thrift1.

struct TableName {
  1: optional binary ns
  2: required binary qualifier
}

// All fields, since a table that is changed goes back as it came.
struct Family {
  1: required binary name
  2: optional map<binary, binary> attributes
  3: optional map<string, string> configuration
  4: optional i32 blockSize
  5: optional i32 bloomFilterType
  6: optional i32 compressionType
  7: optional i16 dfsReplication
  8: optional i32 dataBlockEncoding
  9: optional i32 keepDeletedCells
  10: optional i32 maxVersions
  11: optional i32 minVersions
  12: optional i32 scope
  13: optional i32 timeToLive
  14: optional bool blockCacheEnabled
  15: optional bool cacheBloomsOnWrite
  16: optional bool cacheDataOnWrite
  17: optional bool cacheIndexesOnWrite
  18: optional bool compressTags
  19: optional bool evictBlocksOnClose
  20: optional bool inMemory
}

struct Table {
  1: required TableName tableName
  2: optional list<Family> columns
  3: optional map<binary, binary> attributes
  4: optional i32 durability
}

exception RefusedError {
  1: optional string message
  2: optional bool canRetry
}

service Admin {
  bool tableExists(1: TableName tableName) throws (1: RefusedError io)
  Table getTableDescriptor(1: TableName table) throws (1: RefusedError io)
  void createTable(1: Table desc, 2: list<binary> splitKeys) throws (1: RefusedError io)
  void modifyTable(1: Table desc) throws (1: RefusedError io)
  void disableTable(1: TableName tableName) throws (1: RefusedError io)
  void deleteTable(1: TableName tableName) throws (1: RefusedError io)
  void enableTable(1: TableName tableName) throws (1: RefusedError io)
  bool isTableEnabled(1: TableName tableName) throws (1: RefusedError io)
}
