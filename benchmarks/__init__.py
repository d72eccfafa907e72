"""Programs that measure Tuff beside limits of the machine and beside peers, in the same run."""
