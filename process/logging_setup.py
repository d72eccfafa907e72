"""The format of the log: one line for each event, with `key=value` fields or as JSON, and no
payloads."""

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import TextIO

# What `server.log_level` can be.
LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_PLAIN = re.compile(r"[^\s\"=\\]+")


class LineFormatter(logging.Formatter):
    """`time=… level=… component=… event="…"`, then `code` and the record's own `fields`, and for a
    bug `trace="…"`; all of it on one line."""

    def format(self, record: logging.LogRecord) -> str:
        members, fields = _members(record, self)
        trace = members.pop("trace", None)
        line = " ".join(
            f"{name}={_quoted(value) if name == 'event' else _shown(value)}"
            for name, value in (*members.items(), *fields.items())
        )
        return line if trace is None else f"{line} trace={_quoted(trace)}"


class JsonFormatter(logging.Formatter):
    """Formats an event as one JSON object on one line; the fields are an object in it."""

    def format(self, record: logging.LogRecord) -> str:
        members, fields = _members(record, self)
        if fields:
            members["fields"] = fields
        return json.dumps(members, ensure_ascii=False, default=str)


# What `server.log_format` can be.
FORMATS: Mapping[str, type[logging.Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def _members(
    record: logging.LogRecord, formatter: logging.Formatter
) -> tuple[dict[str, object], Mapping[str, object]]:
    """The members of every line, and the fields of this one (kernel/log_events.py)."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    members: dict[str, object] = {
        "time": f"{moment}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "component": record.name,
        "event": record.getMessage(),
    }
    code = getattr(record, "code", None)
    if code is not None:
        members["code"] = code
    if record.exc_info:
        members["trace"] = formatter.formatException(record.exc_info)
    return members, getattr(record, "fields", {})


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def log_to(stream: TextIO, *, level: str, log_format: str = "text") -> None:
    """Send the logs of this process to a stream, from this level on, in this format."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FORMATS[log_format]())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    # Each attempt to connect; whoever waits for the connection says what failed.
    logging.getLogger("kazoo").setLevel(logging.ERROR)
