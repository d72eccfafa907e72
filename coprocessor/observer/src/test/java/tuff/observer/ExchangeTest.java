package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** States are gone by while they are whole and fresh; records replace each other. */
final class ExchangeTest {

  private static final long STATE_MS = 1_480_001_000_000L;

  @TempDir Path directory;
  private long clockMs = STATE_MS;
  private Exchange exchange;

  @BeforeEach
  void open() throws IOException {
    HadoopFiles files = new HadoopFiles(directory.toUri().toString(), new Configuration());
    exchange = new Exchange(files, () -> clockMs);
  }

  @AfterEach
  void close() {
    exchange.stop();
  }

  private void write(byte[] state) throws IOException {
    Files.write(directory.resolve("state"), state);
    exchange.refresh();
  }

  @Test
  void withoutAFileThereIsNoState() {
    exchange.refresh();

    assertTrue(exchange.current().isEmpty());
  }

  @Test
  void theStateOfTheServerIsGoneBy() throws IOException {
    write(Golden.bytes("retention-state.hex"));

    assertEquals(Set.of(66L), exchange.current().orElseThrow().invalid());
  }

  @Test
  void aStateThatIsNotWholeIsNone() throws IOException {
    write(Golden.bytes("retention-state.hex"));
    byte[] torn = Golden.bytes("retention-state.hex");
    torn[20] ^= 1;

    write(torn);

    assertTrue(exchange.current().isEmpty());
  }

  @Test
  void aStateThatIsGoneIsNone() throws IOException {
    write(Golden.bytes("retention-state.hex"));
    Files.delete(directory.resolve("state"));

    exchange.refresh();

    assertTrue(exchange.current().isEmpty());
  }

  @Test
  void aStateThatNobodyReplacedForAnHourIsNone() throws IOException {
    write(Golden.bytes("retention-state.hex"));
    clockMs = STATE_MS + Exchange.STALE_MS;
    assertTrue(exchange.current().isPresent());

    clockMs++;

    assertTrue(exchange.current().isEmpty());
  }

  @Test
  void aStateOfAnHourToComeIsNone() throws IOException {
    write(Golden.bytes("retention-state.hex"));

    clockMs = STATE_MS - Exchange.STALE_MS - 1;

    assertTrue(exchange.current().isEmpty());
  }

  @Test
  void aReaderThatFailsKeepsNobodyFromTheState() throws IOException {
    List<State> told = new ArrayList<>();
    exchange.addReader(
        state -> {
          throw new IllegalStateException("a bug");
        });
    exchange.addReader(told::add);

    write(Golden.bytes("retention-state.hex"));

    assertEquals(1, told.size());
    assertTrue(exchange.current().isPresent());
  }

  @Test
  void aRecordIsThereWholeAndReplacesTheOneBefore() throws IOException {
    exchange.record("aa.major", new byte[] {1});
    exchange.refresh();
    exchange.record("aa.major", new byte[] {2, 3});
    exchange.refresh();

    Path records = directory.resolve("regions");
    assertArrayEquals(new byte[] {2, 3}, Files.readAllBytes(records.resolve("aa.major")));
    try (Stream<Path> found = Files.list(records)) {
      // Beside checksums of Hadoop's, which begin with a point.
      assertEquals(
          Set.of("aa.major"),
          found
              .map(path -> path.getFileName().toString())
              .filter(name -> !name.startsWith("."))
              .collect(Collectors.toSet()));
    }
  }

  @Test
  void aRecordThatCannotBeWrittenIsWrittenLater() throws IOException {
    Path records = directory.resolve("regions");
    Files.writeString(records, "in the way");
    exchange.record("aa.major", new byte[] {1});
    exchange.refresh();
    assertFalse(Files.isDirectory(records));
    Files.delete(records);

    exchange.refresh();

    assertArrayEquals(new byte[] {1}, Files.readAllBytes(records.resolve("aa.major")));
  }

  @Test
  void aRecordIsWrittenAsTheServerReadsIt() throws IOException {
    RegionRecord record =
        new RegionRecord(
            "0123456789abcdef0123456789abcdef",
            1_480_000_000_000L,
            1_480_000_001_500L,
            new Counts(12, 3, 0),
            List.of(1_479_999_990_000_000_067L, 1_479_999_990_000_000_066L));

    assertArrayEquals(Golden.bytes("region-record.hex"), record.toBytes());
  }
}
