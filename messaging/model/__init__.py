"""Rows, ids and rules of the message store as values: no I/O, no clock, no event loop."""
