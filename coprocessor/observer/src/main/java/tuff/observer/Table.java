package tuff.observer;

import java.util.Locale;

/** Which of the two tables with messages a row stands in. */
enum Table {
  /** Rows of messages: a topic's prefix, then a place. */
  MESSAGE((byte) 'm', 0),
  /** Payloads that were stored ahead of their publish: the write pointer stands before the place. */
  PAYLOAD((byte) 'p', Long.BYTES);

  static final int GENERATION_SIZE = Integer.BYTES;
  static final int PLACE_SIZE = Long.BYTES + Short.BYTES;

  /** What a row's key begins with where all tables share one key space; its checksum covers it. */
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

  /** How many bytes of a key follow the topic's name. */
  int tailSize() {
    return GENERATION_SIZE + pointerSize + PLACE_SIZE;
  }
}
