package tuff.observer;

/** The offset of a row in its topic. The timestamp is unsigned, also in comparisons. */
record Offset(long timestampMs, int seqId) implements Comparable<Offset> {

  @Override
  public int compareTo(Offset other) {
    int byTime = Long.compareUnsigned(timestampMs, other.timestampMs);
    return byTime != 0 ? byTime : Integer.compare(seqId, other.seqId);
  }
}
