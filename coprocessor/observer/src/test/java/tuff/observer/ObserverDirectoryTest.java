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

/** A state counts while it is whole and fresh; a record replaces the one before. */
final class ObserverDirectoryTest {

  private static final long STATE_MS = 1_480_001_000_000L;

  @TempDir Path home;
  private long clockMs = STATE_MS;
  private ObserverDirectory directory;

  @BeforeEach
  void open() throws IOException {
    HadoopFiles files = new HadoopFiles(home.toUri().toString(), new Configuration());
    directory = new ObserverDirectory(files, () -> clockMs);
  }

  @AfterEach
  void close() {
    directory.stop();
  }

  private void write(byte[] state) throws IOException {
    Files.write(home.resolve("state"), state);
    directory.refresh();
  }

  @Test
  void withoutAFileThereIsNoState() {
    directory.refresh();

    assertTrue(directory.current().isEmpty());
  }

  @Test
  void theStateOfTheServerIsUsed() throws IOException {
    write(Golden.bytes("retention-state.hex"));

    assertEquals(Set.of(66L), directory.current().orElseThrow().invalid());
  }

  @Test
  void aDamagedStateIsNotUsed() throws IOException {
    write(Golden.bytes("retention-state.hex"));
    byte[] torn = Golden.bytes("retention-state.hex");
    torn[20] ^= 1;

    write(torn);

    assertTrue(directory.current().isEmpty());
  }

  @Test
  void aStateThatWasDeletedIsNotUsed() throws IOException {
    write(Golden.bytes("retention-state.hex"));
    Files.delete(home.resolve("state"));

    directory.refresh();

    assertTrue(directory.current().isEmpty());
  }

  @Test
  void aStateOlderThanAnHourIsNotUsed() throws IOException {
    write(Golden.bytes("retention-state.hex"));
    clockMs = STATE_MS + ObserverDirectory.STALE_MS;
    assertTrue(directory.current().isPresent());

    clockMs++;

    assertTrue(directory.current().isEmpty());
  }

  @Test
  void aStateAnHourInTheFutureIsNotUsed() throws IOException {
    write(Golden.bytes("retention-state.hex"));

    clockMs = STATE_MS - ObserverDirectory.STALE_MS - 1;

    assertTrue(directory.current().isEmpty());
  }

  @Test
  void aReaderThatFailsDoesNotAffectOthers() throws IOException {
    List<RetentionState> told = new ArrayList<>();
    directory.addReader(
        state -> {
          throw new IllegalStateException("a bug");
        });
    directory.addReader(told::add);

    write(Golden.bytes("retention-state.hex"));

    assertEquals(1, told.size());
    assertTrue(directory.current().isPresent());
  }

  @Test
  void aRecordReplacesTheOneBefore() throws IOException {
    directory.record("aa.major", new byte[] {1});
    directory.refresh();
    directory.record("aa.major", new byte[] {2, 3});
    directory.refresh();

    Path records = home.resolve("regions");
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
    Path records = home.resolve("regions");
    Files.writeString(records, "in the way");
    directory.record("aa.major", new byte[] {1});
    directory.refresh();
    assertFalse(Files.isDirectory(records));
    Files.delete(records);

    directory.refresh();

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
