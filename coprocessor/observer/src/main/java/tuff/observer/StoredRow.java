package tuff.observer;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.Optional;
import java.util.zip.CRC32;

/**
 * A row as it lies in its table, judged only once it is proven whole.
 *
 * <pre>
 * key   := tag(1) topic generation(4) [pointer(8)] place(8+2)
 * value := flags(1) crc(4) [pointer(8)] [ttl_s(4)] [size(4) attributes(size)] rest
 * </pre>
 *
 * Big-endian; the CRC-32 covers the key, the flags and all that follows the CRC. What is damaged, or
 * of a newer version, gives no row here, and so is kept: it may still be read by somebody.
 */
final class StoredRow {

  private static final int HAS_POINTER = 1;
  private static final int HAS_TTL = 2;
  private static final int HAS_ATTRIBUTES = 4;
  private static final int IS_REFERENCE = 8;

  private static final int CRC_AT = 1;
  private static final int BODY_AT = 5;
  private static final int RANGE_SIZE = 2 * Table.PLACE_SIZE + Integer.BYTES;
  private static final long UNSIGNED = 0xFFFFFFFFL;

  private final Table table;
  private final byte[] key;
  private final byte[] value;

  /**
   * A row that keeps both arrays.
   *
   * @param key with the tag of its table
   */
  StoredRow(Table table, byte[] key, byte[] value) {
    this.table = table;
    this.key = key;
    this.value = value;
  }

  /** What the topic's keys begin with, after the tag; empty where the key is too short for any. */
  ByteBuffer topic() {
    int size = Math.max(0, key.length - 1 - table.tailSize());
    return ByteBuffer.wrap(key, 1, size).slice();
  }

  /** What retention must know of it; nothing where its bytes are not what a row looks like. */
  Optional<Row> read() {
    if (key.length < 1 + table.tailSize() || value.length < BODY_AT || !isWhole()) {
      return Optional.empty();
    }
    try {
      return table == Table.PAYLOAD ? readPayload() : readMessage();
    } catch (BufferUnderflowException tooShort) {
      return Optional.empty();
    }
  }

  /** The value of this message row, rolled back; it must have been read, with a pointer. */
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

  private Optional<Row> readMessage() {
    int flags = value[0];
    if ((flags & ~(HAS_POINTER | HAS_TTL | HAS_ATTRIBUTES | IS_REFERENCE)) != 0) {
      return Optional.empty();
    }
    ByteBuffer body = ByteBuffer.wrap(value, BODY_AT, value.length - BODY_AT);
    long pointer = (flags & HAS_POINTER) != 0 ? body.getLong() : 0;
    long ttlS = (flags & HAS_TTL) != 0 ? body.getInt() & UNSIGNED : Row.NO_TTL;
    if (!passAttributes(flags, body)) {
      return Optional.empty();
    }
    boolean hasRange = (flags & HAS_POINTER) != 0 && body.remaining() == RANGE_SIZE;
    if ((flags & IS_REFERENCE) != 0 && !hasRange) {
      return Optional.empty();
    }
    return Optional.of(new Row(table, generation(), place(), pointer, ttlS));
  }

  private Optional<Row> readPayload() {
    int flags = value[0];
    if ((flags & ~(HAS_TTL | HAS_ATTRIBUTES)) != 0) {
      return Optional.empty();
    }
    ByteBuffer body = ByteBuffer.wrap(value, BODY_AT, value.length - BODY_AT);
    if ((flags & HAS_TTL) != 0) {
      // The message's own time to live counts from its publish, which is not known here.
      body.getInt();
    }
    if (!passAttributes(flags, body)) {
      return Optional.empty();
    }
    long pointer = ByteBuffer.wrap(key).getLong(key.length - Table.PLACE_SIZE - Long.BYTES);
    return Optional.of(new Row(table, generation(), place(), pointer, Row.NO_TTL));
  }

  private static boolean passAttributes(int flags, ByteBuffer body) {
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

  private Place place() {
    ByteBuffer bytes = ByteBuffer.wrap(key);
    int at = key.length - Table.PLACE_SIZE;
    return new Place(bytes.getLong(at), Short.toUnsignedInt(bytes.getShort(at + Long.BYTES)));
  }
}
