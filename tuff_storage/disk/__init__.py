"""How bytes become durable: group commit, checksummed records, atomic files, the directory lock."""
