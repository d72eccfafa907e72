"""Consumer groups: members, assignments of partitions, committed offsets (decision 0043, §4)."""
