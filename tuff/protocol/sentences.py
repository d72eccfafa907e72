"""Parts of sentences for people."""


def counted(count: int, what: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
