"""Logs for machines and people: one line an event on standard error, `key=value`, no payloads."""

import json
import logging
import sys
import time
from typing import TextIO


class LineFormatter(logging.Formatter):
    """`time=… level=… room=… event="…"`, and for a bug `trace="…"` on the same line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"time={moment}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"room={record.name} event={json.dumps(record.getMessage(), ensure_ascii=False)}"
        )
        if record.exc_info:
            line += f" trace={json.dumps(self.formatException(record.exc_info))}"
        return line


def log_to(stream: TextIO = sys.stderr) -> None:
    """Send the logs of this process to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # aiohttp logs every malformed request of a client as an error with a trace; the client got its
    # answer, and a stranger must not be able to fill the disk.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
