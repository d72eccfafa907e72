package tuff.observer;

import java.util.Locale;

/** The two tables that have messages. */
enum Table {
  /** Rows of messages: a topic's prefix, then the offset. */
  MESSAGE((byte) 'm', 0),
  /** Payloads that were stored before their publish: prefix, write pointer, offset. */
  PAYLOAD((byte) 'p', Long.BYTES);

  static final int GENERATION_SIZE = Integer.BYTES;
  static final int OFFSET_SIZE = Long.BYTES + Short.BYTES;

  /** The first byte of a row's key in the store; HBase's rows lack it, and checksums cover it. */
  final byte tag;

  private final int pointerSize;

  Table(byte tag, int pointerSize) {
    this.tag = tag;
    this.pointerSize = pointerSize;
  }

  /**
   * The table of that name.
   *
   * @throws IllegalArgumentException there is none.
   */
  static Table named(String name) {
    return valueOf(name.toUpperCase(Locale.ROOT));
  }

  /** The number of bytes of a key behind the topic's name. */
  int tailSize() {
    return GENERATION_SIZE + pointerSize + OFFSET_SIZE;
  }
}
