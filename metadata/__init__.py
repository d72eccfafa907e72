"""Metadata of a cluster: a small store with compare-and-set, and the managers above it."""
