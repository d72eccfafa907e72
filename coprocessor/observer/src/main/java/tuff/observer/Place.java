package tuff.observer;

/** Where a row stands in its topic. Both numbers are unsigned, and so is their order. */
record Place(long timestampMs, int seqId) implements Comparable<Place> {

  @Override
  public int compareTo(Place other) {
    int byTime = Long.compareUnsigned(timestampMs, other.timestampMs);
    return byTime != 0 ? byTime : Integer.compare(seqId, other.seqId);
  }
}
