"""The form of the log: one line for each event, with `key=value` fields and no payloads."""

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
    """`time=… level=… component=… event="…"`, then the record's own `fields`, and
    for a bug `trace="…"`; all of it on one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"time={moment}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"component={record.name} event={json.dumps(record.getMessage(), ensure_ascii=False)}"
        )
        fields: Mapping[str, object] = getattr(record, "fields", {})
        for name, value in fields.items():
            line += f" {name}={_shown(value)}"
        if record.exc_info:
            line += f" trace={json.dumps(self.formatException(record.exc_info))}"
        return line


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def log_to(stream: TextIO, *, level: str) -> None:
    """Send the logs of this process to a stream, from this level on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    # Each attempt to connect; whoever waits for the connection says what failed.
    logging.getLogger("kazoo").setLevel(logging.ERROR)
