"""The CRC-32 of everything that is stored: that of zlib, by a library that is eight times faster.

A message is summed up when it is written and when it is read, and on a long stretch of bytes it was
the dearest step of both.
"""

from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
