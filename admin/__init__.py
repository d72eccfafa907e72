"""Offline tools for stopped servers: fsck, salvage, backup, restore, inspect; and HBase tables."""
