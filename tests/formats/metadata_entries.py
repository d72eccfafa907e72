"""A reader of the entries of a cluster's metadata, from docs/formats.md §16."""

import struct

from tests.formats.transaction_files import DamagedError, Value


def read_entry(data: bytes) -> Value:
    """An entry or a tombstone."""
    if len(data) < 27 or data[0] != 1 or data[1] not in (0, 1):
        raise DamagedError("it does not begin as an entry does")
    version, nonce, session_size = struct.unpack_from(">Q16sB", data, 2)
    session, value = data[27 : 27 + session_size], data[27 + session_size :]
    is_deleted = data[1] == 1
    if len(session) < session_size or version == 0 or (is_deleted and (session or value)):
        raise DamagedError("it is no entry")
    return {
        "version": version,
        "nonce": nonce.hex(),
        "session": session.decode() or None,
        "value": value,
        "is_deleted": is_deleted,
    }
