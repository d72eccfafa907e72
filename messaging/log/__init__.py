"""The log of all topics: what is known of it in memory, and scans of its rows."""
