"""What a publish passes through: rows, write batches and the group commit."""
