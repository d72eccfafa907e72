"""What a log line of the server has besides its sentence: a stable name and fields.

docs/logs.md lists the names. Programs compare them, since they do not change with the wording.
"""


def event(code: str, **fields: object) -> dict[str, object]:
    """The argument `extra` of a log call: the name of the event, and its numbers and names."""
    return {"code": code, "fields": fields}
