package tuff.observer;

/**
 * What retention does with a row.
 *
 * <p>The rule is that of the server ({@code decide} in messaging/model/expiry.py), repeated
 * since HBase loads only JVM classes. Both are tested with the same golden cases. Neither reads a
 * clock: the time is that of the state.
 */
enum Decision {
  KEEP,
  DROP,
  INVERT;

  private static final long MS_PER_S = 1_000;

  /**
   * The decision for a row.
   *
   * @param topic the rule of the row's topic; null if the state does not name the topic
   */
  static Decision of(RetainedRow row, TopicRule topic, RetentionState state) {
    if (topic == null) {
      return KEEP;
    }
    if (isOlderGeneration(row.generation(), topic.generation())) {
      return DROP;
    }
    return row.table() == Table.PAYLOAD
        ? ofPayload(row, topic, state)
        : ofMessage(row, topic, state);
  }

  private static Decision ofMessage(RetainedRow row, TopicRule topic, RetentionState state) {
    long ttlMs = Math.min(row.ttlS(), topic.ttlS()) * MS_PER_S;
    if (row.offset().compareTo(topic.floor()) < 0
        || hasPassed(row.offset(), ttlMs, state.nowMs())) {
      return DROP;
    }
    return row.pointer() > 0 && state.invalid().contains(row.pointer()) ? INVERT : KEEP;
  }

  private static Decision ofPayload(RetainedRow row, TopicRule topic, RetentionState state) {
    if (state.inProgress().contains(row.pointer())) {
      return KEEP;
    }
    // Its publish time is not in its key: it may be as late as its transaction could live.
    long keptMs = topic.ttlS() * MS_PER_S + state.longestTransactionMs();
    return hasPassed(row.offset(), keptMs, state.nowMs()) ? DROP : KEEP;
  }

  private static boolean isOlderGeneration(int generation, int current) {
    return Integer.compareUnsigned(generation, Math.abs(current)) < 0 || generation == -current;
  }

  private static boolean hasPassed(Offset offset, long keptMs, long nowMs) {
    // A negative timestamp is an unsigned one in the far future. The difference can't overflow:
    // keptMs is below 2^43.
    long timestampMs = offset.timestampMs();
    return timestampMs >= 0 && timestampMs <= nowMs - keptMs;
  }
}
