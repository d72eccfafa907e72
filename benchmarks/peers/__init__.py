"""The peers, each with its guarantees at full strength: who is acknowledged is on the disk."""
