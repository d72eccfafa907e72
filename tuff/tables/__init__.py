"""Tables of versioned rows that take part in transactions: in LevelDB, and in HBase."""
