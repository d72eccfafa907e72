"""The encoding of keys: printable ASCII that ZooKeeper accepts as a path, and that sorts below its
prefix.

    encoded   := component ("/" component)*       at most KEY_BYTES_MAX
    component := (unreserved | "%" hex hex)+      UTF-8, percent-encoded; "." and ".." are, too

The keys below a prefix are the encoded keys that begin with the encoded prefix and "/".
"""

from urllib.parse import quote, unquote

from metadata.store_interface import KEY_BYTES_MAX, Key

_SEPARATOR = "/"
_BEHIND_SEPARATOR = "0"
assert ord(_BEHIND_SEPARATOR) == ord(_SEPARATOR) + 1


def encode_key(key: Key) -> str:
    """The encoded key, or prefix. Raises: ValueError: it has no component, an empty one, a lone
    surrogate, or more than KEY_BYTES_MAX bytes."""
    if not key or not all(key):
        raise ValueError(f"the key {key!r} has no component, or an empty one")
    try:
        encoded = _SEPARATOR.join(_encoded_component(component) for component in key)
    except UnicodeEncodeError:
        raise ValueError(f"the key {key!r} has a lone surrogate, which is not text") from None
    if len(encoded) > KEY_BYTES_MAX:
        raise ValueError(
            f"the encoded key has {len(encoded)} bytes; at most {KEY_BYTES_MAX} are allowed"
        )
    return encoded


def decode_key(encoded: str) -> Key:
    """The key of an encoded key. Raises: ValueError: `encode_key` does not return such text."""
    try:
        key = tuple(unquote(component, errors="strict") for component in encoded.split(_SEPARATOR))
        is_encoded = encode_key(key) == encoded
    except ValueError:
        is_encoded, key = False, ()
    if not is_encoded:
        raise ValueError(f"{encoded!r} is not an encoded key")
    return key


def range_below(prefix: Key) -> tuple[str, str]:
    """The range `start <= encoded key < stop` of the keys below a prefix. Raises: ValueError."""
    encoded = encode_key(prefix)
    return encoded + _SEPARATOR, encoded + _BEHIND_SEPARATOR


def is_at_or_below(key: Key, prefix: Key) -> bool:
    """Whether a watch of the prefix reports changes of this key."""
    return key[: len(prefix)] == prefix


def _encoded_component(component: str) -> str:
    if component in (".", ".."):  # not allowed in ZooKeeper's paths
        return component.replace(".", "%2E")
    return quote(component, safe="")
