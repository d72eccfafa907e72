// What a server asks of a Thrift2 gateway where every write is to be forced to the disk: the few calls
// that it uses, with the numbers of fields that HBase gave them. All else goes through Thrift1.

struct ColumnValue {
  1: required binary family
  2: required binary qualifier
  3: required binary value
  4: optional i64 timestamp
}

struct Column {
  1: required binary family
  2: optional binary qualifier
}

struct Get {
  1: required binary row
  2: optional list<Column> columns
}

struct Result {
  1: optional binary row
  2: required list<ColumnValue> columnValues
}

struct Put {
  1: required binary row
  2: required list<ColumnValue> columnValues
  3: optional i64 timestamp
  6: optional i32 durability
}

// Without columns it deletes the row, up to its timestamp.
struct Delete {
  1: required binary row
  2: optional list<Column> columns
  3: optional i64 timestamp
  4: optional i32 deleteType
  7: optional i32 durability
}

exception RefusedError {
  1: optional string message
  2: optional bool canRetry
}

exception ArgumentError {
  1: optional string message
}

service Data {
  Result get(1: binary table, 2: Get get) throws (1: RefusedError io)
  bool checkAndPut(1: binary table, 2: binary row, 3: binary family, 4: binary qualifier,
                   5: binary value, 6: Put put)
    throws (1: RefusedError io, 2: ArgumentError argument)
  void putMultiple(1: binary table, 2: list<Put> puts)
    throws (1: RefusedError io, 2: ArgumentError argument)
  list<Delete> deleteMultiple(1: binary table, 2: list<Delete> deletes)
    throws (1: RefusedError io, 2: ArgumentError argument)
}
