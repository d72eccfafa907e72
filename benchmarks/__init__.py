"""Programs that measure Tuff beside the machine's limits and beside its peers, in the same run."""
