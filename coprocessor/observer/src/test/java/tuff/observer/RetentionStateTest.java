package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** A state is read as the server wrote it, or refused. */
final class RetentionStateTest {

  @Test
  void aStateOfTheServerIsRead() throws IOException {
    RetentionState state = RetentionState.read(Golden.bytes("retention-state.hex"));

    ByteBuffer audit = ByteBuffer.wrap("default:audit:".getBytes(StandardCharsets.US_ASCII));
    assertEquals(
        new RetentionState(
            1_480_001_000_000L,
            100_000,
            Map.of(audit, new TopicRule(1, 100, new Offset(0, 0))),
            Set.of(70L),
            Set.of(66L)),
        state);
  }

  @Test
  void aTruncatedStateIsRefused() throws IOException {
    byte[] whole = Golden.bytes("retention-state.hex");
    for (int size = 0; size < whole.length; size++) {
      byte[] cut = Arrays.copyOf(whole, size);
      assertThrows(UnreadableStateException.class, () -> RetentionState.read(cut));
    }
  }

  @Test
  void aFlippedBitIsRefused() throws IOException {
    byte[] whole = Golden.bytes("retention-state.hex");
    for (int bit = 0; bit < whole.length * 8; bit++) {
      byte[] flipped = whole.clone();
      flipped[bit / 8] ^= (byte) (1 << (bit % 8));
      assertThrows(UnreadableStateException.class, () -> RetentionState.read(flipped));
    }
  }
}
