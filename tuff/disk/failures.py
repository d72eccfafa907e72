"""How an engine that keeps rows fails, whichever it is and whoever uses it."""


class StoreError(Exception):
    """The engine can't read or write. A write that raised may or may not be there afterwards."""
