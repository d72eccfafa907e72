package tuff.observer;

/**
 * The parts of a row that decide on its retention. The pointer of a message is the stored one,
 * which is negative after a rollback; that of a payload is the one in its key; 0 means none.
 *
 * @param generation unsigned, as it is stored
 * @param ttlS the message's own time to live, or {@link #NO_TTL}
 */
record RetainedRow(Table table, int generation, Offset offset, long pointer, long ttlS) {

  /** Longer than any time to live that can be stored. */
  static final long NO_TTL = Long.MAX_VALUE;
}
