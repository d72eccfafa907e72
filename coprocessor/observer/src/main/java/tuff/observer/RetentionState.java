package tuff.observer;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.zip.CRC32;

/**
 * Topics and transactions at one moment of the server's clock, by which rows are removed. The
 * server writes it.
 *
 * <pre>
 * state    := "TUFFRTST" version(2) crc(4) now_ms(8) longest_ms(8) count(4) topic* pointers pointers
 * topic    := size(2) name(size) generation(4, signed) ttl_s(4) floor(8+2)
 * pointers := count(4) pointer(8)*                           in progress, then invalid
 * </pre>
 *
 * Big-endian; the CRC-32 covers everything behind it. With an older state less is removed than with
 * a newer one, and nothing else, so a late read does no harm.
 *
 * @param topics by the prefix of the topic's keys
 * @param longestTransactionMs the longest time between the store of a payload and its publish
 */
record RetentionState(
    long nowMs,
    long longestTransactionMs,
    Map<ByteBuffer, TopicRule> topics,
    Set<Long> inProgress,
    Set<Long> invalid) {

  private static final byte[] BEGINNING = {'T', 'U', 'F', 'F', 'R', 'T', 'S', 'T', 0, 1};
  private static final int BODY_AT = BEGINNING.length + Integer.BYTES;
  private static final long UNSIGNED = 0xFFFFFFFFL;

  RetentionState {
    topics = Map.copyOf(topics);
    inProgress = Set.copyOf(inProgress);
    invalid = Set.copyOf(invalid);
  }

  /**
   * The state in a file.
   *
   * @throws UnreadableStateException the file is damaged, or of another version.
   */
  static RetentionState read(byte[] file) throws UnreadableStateException {
    if (file.length < BODY_AT
        || !Arrays.equals(file, 0, BEGINNING.length, BEGINNING, 0, BEGINNING.length)) {
      throw new UnreadableStateException("it does not begin as a state of this version does");
    }
    CRC32 crc = new CRC32();
    crc.update(file, BODY_AT, file.length - BODY_AT);
    ByteBuffer bytes = ByteBuffer.wrap(file);
    if (bytes.getInt(BEGINNING.length) != (int) crc.getValue()) {
      throw new UnreadableStateException("its checksum does not match");
    }
    try {
      return readBody(bytes.position(BODY_AT));
    } catch (BufferUnderflowException tooShort) {
      throw new UnreadableStateException("it ends too early");
    }
  }

  private static RetentionState readBody(ByteBuffer bytes) throws UnreadableStateException {
    long nowMs = bytes.getLong();
    long longestTransactionMs = bytes.getLong();
    Map<ByteBuffer, TopicRule> topics = readTopics(bytes);
    Set<Long> inProgress = readPointers(bytes);
    Set<Long> invalid = readPointers(bytes);
    if (bytes.hasRemaining()) {
      throw new UnreadableStateException("something follows its end");
    }
    return new RetentionState(nowMs, longestTransactionMs, topics, inProgress, invalid);
  }

  private static Map<ByteBuffer, TopicRule> readTopics(ByteBuffer bytes) {
    Map<ByteBuffer, TopicRule> topics = new HashMap<>();
    for (long left = bytes.getInt() & UNSIGNED; left > 0; left--) {
      byte[] name = new byte[Short.toUnsignedInt(bytes.getShort())];
      bytes.get(name);
      int generation = bytes.getInt();
      long ttlS = bytes.getInt() & UNSIGNED;
      Offset floor = new Offset(bytes.getLong(), Short.toUnsignedInt(bytes.getShort()));
      topics.put(ByteBuffer.wrap(name), new TopicRule(generation, ttlS, floor));
    }
    return topics;
  }

  private static Set<Long> readPointers(ByteBuffer bytes) {
    Set<Long> pointers = new HashSet<>();
    for (long left = bytes.getInt() & UNSIGNED; left > 0; left--) {
      pointers.add(bytes.getLong());
    }
    return pointers;
  }
}
