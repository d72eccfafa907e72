package tuff.observer;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.Optional;
import java.util.zip.CRC32;

/**
 * The bytes of a row, which are used only after its checksum was verified.
 *
 * <pre>
 * key   := tag(1) topic generation(4) [pointer(8)] offset(8+2)
 * value := flags(1) crc(4) [pointer(8)] [ttl_s(4)] [size(4) attributes(size)] rest
 * </pre>
 *
 * Big-endian; the CRC-32 covers the key, the flags and everything behind the CRC. A row that is
 * damaged, or of a newer version, can't be read here, and is kept: another reader may be able to
 * read it.
 */
final class StoredRow {

  private static final int HAS_POINTER = 1;
  private static final int HAS_TTL = 2;
  private static final int HAS_ATTRIBUTES = 4;
  private static final int IS_REFERENCE = 8;

  private static final int CRC_AT = 1;
  private static final int BODY_AT = 5;
  private static final int RANGE_SIZE = 2 * Table.OFFSET_SIZE + Integer.BYTES;
  private static final long UNSIGNED = 0xFFFFFFFFL;

  private final Table table;
  private final byte[] key;
  private final byte[] value;

  /**
   * A row that shares both arrays with the caller.
   *
   * @param key with the tag of its table
   */
  StoredRow(Table table, byte[] key, byte[] value) {
    this.table = table;
    this.key = key;
    this.value = value;
  }

  /** The prefix of the topic's keys, without the tag; empty if the key is too short. */
  ByteBuffer topic() {
    int size = Math.max(0, key.length - 1 - table.tailSize());
    return ByteBuffer.wrap(key, 1, size).slice();
  }

  /** The parts that retention needs; empty if the row can't be read. */
  Optional<RetainedRow> read() {
    if (key.length < 1 + table.tailSize() || value.length < BODY_AT || !isWhole()) {
      return Optional.empty();
    }
    try {
      return table == Table.PAYLOAD ? readPayload() : readMessage();
    } catch (BufferUnderflowException tooShort) {
      return Optional.empty();
    }
  }

  /** The value of this message row after a rollback; `read` must have returned a pointer. */
  byte[] inverted() {
    byte[] turned = value.clone();
    ByteBuffer bytes = ByteBuffer.wrap(turned);
    bytes.putLong(BODY_AT, -bytes.getLong(BODY_AT));
    bytes.putInt(CRC_AT, checksum(turned));
    return turned;
  }

  private boolean isWhole() {
    return ByteBuffer.wrap(value).getInt(CRC_AT) == checksum(value);
  }

  private int checksum(byte[] of) {
    CRC32 crc = new CRC32();
    crc.update(key);
    crc.update(of, 0, CRC_AT);
    crc.update(of, BODY_AT, of.length - BODY_AT);
    return (int) crc.getValue();
  }

  private Optional<RetainedRow> readMessage() {
    int flags = value[0];
    if ((flags & ~(HAS_POINTER | HAS_TTL | HAS_ATTRIBUTES | IS_REFERENCE)) != 0) {
      return Optional.empty();
    }
    ByteBuffer body = ByteBuffer.wrap(value, BODY_AT, value.length - BODY_AT);
    long pointer = (flags & HAS_POINTER) != 0 ? body.getLong() : 0;
    long ttlS = (flags & HAS_TTL) != 0 ? body.getInt() & UNSIGNED : RetainedRow.NO_TTL;
    if (!skipAttributes(flags, body)) {
      return Optional.empty();
    }
    boolean hasRange = (flags & HAS_POINTER) != 0 && body.remaining() == RANGE_SIZE;
    if ((flags & IS_REFERENCE) != 0 && !hasRange) {
      return Optional.empty();
    }
    return Optional.of(new RetainedRow(table, generation(), offset(), pointer, ttlS));
  }

  private Optional<RetainedRow> readPayload() {
    int flags = value[0];
    if ((flags & ~(HAS_TTL | HAS_ATTRIBUTES)) != 0) {
      return Optional.empty();
    }
    ByteBuffer body = ByteBuffer.wrap(value, BODY_AT, value.length - BODY_AT);
    if ((flags & HAS_TTL) != 0) {
      // The message's own time to live counts from its publish, whose time is not known here.
      body.getInt();
    }
    if (!skipAttributes(flags, body)) {
      return Optional.empty();
    }
    long pointer = ByteBuffer.wrap(key).getLong(key.length - Table.OFFSET_SIZE - Long.BYTES);
    return Optional.of(new RetainedRow(table, generation(), offset(), pointer, RetainedRow.NO_TTL));
  }

  private static boolean skipAttributes(int flags, ByteBuffer body) {
    if ((flags & HAS_ATTRIBUTES) == 0) {
      return true;
    }
    long size = body.getInt() & UNSIGNED;
    if (size > body.remaining()) {
      return false;
    }
    body.position(body.position() + (int) size);
    return true;
  }

  private int generation() {
    return ByteBuffer.wrap(key).getInt(key.length - table.tailSize());
  }

  private Offset offset() {
    ByteBuffer bytes = ByteBuffer.wrap(key);
    int at = key.length - Table.OFFSET_SIZE;
    return new Offset(bytes.getLong(at), Short.toUnsignedInt(bytes.getShort(at + Long.BYTES)));
  }
}
