package tuff.observer;

/**
 * What retention must know of a row. A message's pointer is the stored one, negative once it was
 * rolled back; a payload's is the one in its key. A pointer of 0 is none.
 *
 * @param generation unsigned, as it is stored
 * @param ttlS the message's own time to live, or {@link #NO_TTL}
 */
record Row(Table table, int generation, Place place, long pointer, long ttlS) {

  /** Longer than any time to live that can be written. */
  static final long NO_TTL = Long.MAX_VALUE;
}
