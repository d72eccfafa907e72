"""Names of namespaces and topics (protocol §1, Names), and how long those of sinks may be."""

import re
from dataclasses import dataclass
from functools import lru_cache

from tuff.protocol.errors import InvalidNameError

NAME_LENGTH_MAX = 128  # characters; keeps a row key prefix under 300 bytes
SINK_NAME_LENGTH_MAX = 128  # characters; as many as one of these
TOPIC_IDS_COUNT_MAX = 4_096  # topics whose names were found legal and are not checked again

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_name(name: str, *, what: str) -> str:
    """The name itself, if it is legal.

    Raises:
        InvalidNameError: it has other characters, is empty, too long, or is `.` or `..`.
    """
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        shown = name if len(name) <= NAME_LENGTH_MAX else name[:NAME_LENGTH_MAX] + "…"
        raise InvalidNameError(
            f"{what} {shown!r} is not a legal name: use 1 to {NAME_LENGTH_MAX} characters of "
            "A-Z a-z 0-9 . _ - (and not . or ..)"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class TopicId:
    """A topic's identity: its namespace and its name, both legal names.

    Raises:
        InvalidNameError: one of the two is not.
    """

    namespace: str
    name: str

    def __post_init__(self) -> None:
        check_name(self.namespace, what="namespace")
        check_name(self.name, what="topic")

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


@lru_cache(TOPIC_IDS_COUNT_MAX)
def topic_id(namespace: str, name: str) -> TopicId:
    """The topic of these names; one value for whoever names it, again and again.

    Raises:
        InvalidNameError: one of the two is not legal.
    """
    return TopicId(namespace, name)
