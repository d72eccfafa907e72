package tuff.observer;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Set;
import java.util.zip.CRC32;

/**
 * What a flush or compaction of one region did. The server reads it.
 *
 * <pre>
 * record := "TUFFRGRC" version(2) crc(4) size(2) region(size) state_ms(8) ended_ms(8)
 *           dropped(8) inverted(8) count(4) pointer(8)*
 * </pre>
 *
 * @param stateMs the time of the state that was used, 0 for none
 * @param cleared invalid pointers that no row of the region carries any more
 */
record RegionRecord(
    String region, long stateMs, long endedMs, Counts counts, Collection<Long> cleared) {

  private static final byte[] BEGINNING = {'T', 'U', 'F', 'F', 'R', 'G', 'R', 'C', 0, 1};
  private static final int NUMBERS_SIZE = 4 * Long.BYTES;

  RegionRecord {
    cleared = Set.copyOf(cleared);
  }

  /** The whole file. */
  byte[] toBytes() {
    byte[] body = body();
    CRC32 crc = new CRC32();
    crc.update(body);
    return ByteBuffer.allocate(BEGINNING.length + Integer.BYTES + body.length)
        .put(BEGINNING)
        .putInt((int) crc.getValue())
        .put(body)
        .array();
  }

  private byte[] body() {
    byte[] name = region.getBytes(StandardCharsets.US_ASCII);
    int size =
        Short.BYTES + name.length + NUMBERS_SIZE + Integer.BYTES + cleared.size() * Long.BYTES;
    ByteBuffer bytes = ByteBuffer.allocate(size);
    bytes.putShort((short) name.length).put(name).putLong(stateMs).putLong(endedMs);
    bytes.putLong(counts.dropped()).putLong(counts.inverted()).putInt(cleared.size());
    cleared.stream().sorted().forEach(bytes::putLong);
    return bytes.array();
  }
}
