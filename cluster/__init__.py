"""Servers that share one namespace of topics: membership, topic ownership, the leader."""
