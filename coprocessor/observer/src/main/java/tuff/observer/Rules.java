package tuff.observer;

/**
 * What retention does with a row: the rule of the server ({@code fate} in messaging/retention/decision.py)
 * once more, since HBase loads nothing but JVM classes. Both follow the same golden cases, and
 * neither looks at a clock: the time is that of the state.
 */
final class Rules {

  private static final long MS_PER_S = 1_000;

  private Rules() {}

  /**
   * Keep, drop or invert a row.
   *
   * @param topic the rule of the row's topic, or null where nobody knows the topic
   */
  static Fate fate(Row row, TopicRule topic, State state) {
    if (topic == null) {
      return Fate.KEEP;
    }
    if (isOlderGeneration(row.generation(), topic.generation())) {
      return Fate.DROP;
    }
    return row.table() == Table.PAYLOAD
        ? payloadFate(row, topic, state)
        : messageFate(row, topic, state);
  }

  private static Fate messageFate(Row row, TopicRule topic, State state) {
    long ttlMs = Math.min(row.ttlS(), topic.ttlS()) * MS_PER_S;
    if (row.place().compareTo(topic.floor()) < 0 || hasPassed(row.place(), ttlMs, state.nowMs())) {
      return Fate.DROP;
    }
    return row.pointer() > 0 && state.invalid().contains(row.pointer()) ? Fate.INVERT : Fate.KEEP;
  }

  private static Fate payloadFate(Row row, TopicRule topic, State state) {
    if (state.inProgress().contains(row.pointer())) {
      return Fate.KEEP;
    }
    // Its publish time is not in its key: it may be as late as its transaction could live.
    long keptMs = topic.ttlS() * MS_PER_S + state.longestTransactionMs();
    return hasPassed(row.place(), keptMs, state.nowMs()) ? Fate.DROP : Fate.KEEP;
  }

  private static boolean isOlderGeneration(int generation, int current) {
    return Integer.compareUnsigned(generation, Math.abs(current)) < 0 || generation == -current;
  }

  private static boolean hasPassed(Place place, long keptMs, long nowMs) {
    // A time beyond what a signed number can hold is one to come. The sum can't overflow: what is
    // kept is less than 2^43 ms, and a time so near the end of the numbers has not passed either.
    long timestampMs = place.timestampMs();
    return timestampMs >= 0 && timestampMs <= nowMs - keptMs;
  }
}
