package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.hbase.ArrayBackedTag;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellComparator;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ExtendedCell;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.RawCell;
import org.apache.hadoop.hbase.RawCellBuilderFactory;
import org.apache.hadoop.hbase.Tag;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.regionserver.Shipper;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The cells that a flush or a compaction gets to write. */
final class CleaningScannerTest {

  private static final byte[] FAMILY = {'d'};
  private static final byte[] HEAD = {'t'};
  private static final byte[] PAYLOAD = {'p'};
  private static final long WRITTEN_MS = 1_479_999_999_999L;
  private static final long SEQUENCE = 77;

  /** Returns cells as a store does: up to `callSize` in a call, all of one row. */
  private static final class Source implements InternalScanner, Shipper {
    private final List<Cell> cells;
    private final int callSize;
    private int at;
    private int shipped;
    private boolean isClosed;

    Source(List<Cell> cells, int callSize) {
      this.cells = cells;
      this.callSize = callSize;
    }

    @Override
    public boolean next(List<Cell> out, ScannerContext context) {
      Cell first = at < cells.size() ? cells.get(at) : null;
      int count = 0;
      while (at < cells.size() && count < callSize && CellUtil.matchingRows(first, cells.get(at))) {
        out.add(cells.get(at++));
        count++;
      }
      return at < cells.size();
    }

    @Override
    public void shipped() {
      shipped++;
    }

    @Override
    public void close() {
      isClosed = true;
    }
  }

  private static byte[] salted(byte[] key) {
    byte[] row = key.clone();
    row[0] = 5;
    return row;
  }

  private static KeyValue cell(byte[] key, byte[] column, byte[] value, Tag... tags) {
    KeyValue cell =
        new KeyValue(
            salted(key), FAMILY, column, WRITTEN_MS, KeyValue.Type.Put, value, List.of(tags));
    cell.setSequenceId(SEQUENCE);
    return cell;
  }

  private static KeyValue marker(byte[] key, byte[] column) {
    return new KeyValue(salted(key), FAMILY, column, WRITTEN_MS - 1, KeyValue.Type.DeleteColumn);
  }

  /** The size of the part of a value before its payload. */
  private static int headSize(byte[] value) {
    if (value.length < 5 || (value[0] & 0xF0) != 0) {
      return Math.min(value.length, 5);
    }
    if ((value[0] & 8) != 0) {
      return value.length;
    }
    ByteBuffer bytes = ByteBuffer.wrap(value).position(5);
    int size = 5 + ((value[0] & 1) != 0 ? 8 : 0) + ((value[0] & 2) != 0 ? 4 : 0);
    if ((value[0] & 4) != 0 && size + 4 <= value.length) {
      size += 4 + bytes.getInt(size);
    }
    return size < 0 || size > value.length ? value.length : size;
  }

  private static List<Cell> cells(byte[] key, byte[] value) {
    int size = headSize(value);
    List<Cell> cells = new ArrayList<>();
    if (value.length == 0 || (value[0] & 8) == 0) {
      cells.add(cell(key, PAYLOAD, Arrays.copyOfRange(value, size, value.length)));
    }
    cells.add(cell(key, HEAD, Arrays.copyOf(value, size)));
    return cells;
  }

  private static CleaningScanner cleaner(
      InternalScanner source, Table table, RetentionState state) {
    Cells cells = new Cells(table, RawCellBuilderFactory::create);
    return new CleaningScanner(source, cells, state, done -> {});
  }

  private static List<Cell> written(CleaningScanner cleaner) throws IOException {
    List<Cell> all = new ArrayList<>();
    List<Cell> some = new ArrayList<>();
    boolean hasMore = true;
    while (hasMore) {
      some.clear();
      hasMore = cleaner.next(some);
      all.addAll(some);
      cleaner.shipped();
    }
    cleaner.close();
    return all;
  }

  private static Iterator<JsonObject> goldenRows(Table table) throws IOException {
    List<JsonObject> found = new ArrayList<>();
    for (JsonElement each : Golden.retention().getAsJsonObject("rows").getAsJsonArray("cases")) {
      JsonObject row = each.getAsJsonObject();
      if (Golden.bytes(row, "key")[0] == table.tag) {
        found.add(row);
      }
    }
    // Rows come in the order of their keys; equal keys of two cases would be one row.
    found.sort((a, b) -> Arrays.compareUnsigned(Golden.bytes(a, "key"), Golden.bytes(b, "key")));
    return found.iterator();
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 10})
  void goldenRowsAreWrittenAsTheCasesSay(int callSize) throws IOException {
    for (Table table : Table.values()) {
      for (Iterator<JsonObject> rows = goldenRows(table); rows.hasNext(); ) {
        JsonObject row = rows.next();
        byte[] key = Golden.bytes(row, "key");
        List<Cell> before = cells(key, Golden.bytes(row, "value"));
        byte[] kept = Golden.bytes(row, row.has("becomes") ? "becomes" : "value");
        List<Cell> expected =
            row.get("fate").getAsString().equals("drop") ? List.of() : cells(key, kept);

        List<Cell> after =
            written(cleaner(new Source(before, callSize), table, Golden.stateOfRows()));

        assertSame(expected, after, row.get("name").getAsString());
      }
    }
  }

  private static void assertSame(List<Cell> expected, List<Cell> found, String name) {
    assertEquals(expected.size(), found.size(), name);
    for (int index = 0; index < expected.size(); index++) {
      Cell one = expected.get(index);
      Cell other = found.get(index);
      assertEquals(0, CellComparator.getInstance().compare(one, other), name);
      assertArrayEquals(CellUtil.cloneValue(one), CellUtil.cloneValue(other), name);
      assertEquals(SEQUENCE, ((ExtendedCell) other).getSequenceId(), name);
    }
  }

  private static JsonObject golden(String name) throws IOException {
    for (JsonElement each : Golden.retention().getAsJsonObject("rows").getAsJsonArray("cases")) {
      if (each.getAsJsonObject().get("name").getAsString().equals(name)) {
        return each.getAsJsonObject();
      }
    }
    throw new IllegalArgumentException(name);
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3, 10})
  void deleteMarkersPassAndCellsStayInTheirOrder(int callSize) throws IOException {
    JsonObject row = golden("an expired message");
    byte[] key = Golden.bytes(row, "key");
    List<Cell> puts = cells(key, Golden.bytes(row, "value"));
    Cell first = marker(key, PAYLOAD);
    Cell second = marker(key, HEAD);
    Source source =
        new Source(List.of(puts.get(0), first, puts.get(1), second), callSize);

    List<Cell> after = written(cleaner(source, Table.MESSAGE, Golden.stateOfRows()));

    assertEquals(List.of(first, second), after);
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3, 10})
  void aPayloadWithoutItsHeadIsWritten(int callSize) throws IOException {
    JsonObject row = golden("an expired message");
    byte[] key = Golden.bytes(row, "key");
    Cell lonely = cells(key, Golden.bytes(row, "value")).get(0);
    JsonObject next = golden("a live message");
    List<Cell> others = cells(Golden.bytes(next, "key"), Golden.bytes(next, "value"));
    Source source = new Source(List.of(lonely, others.get(0), others.get(1)), callSize);

    List<Cell> after = written(cleaner(source, Table.MESSAGE, Golden.stateOfRows()));

    assertEquals(3, after.size());
    assertEquals(0, CellComparator.getInstance().compare(lonely, after.get(0)));
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 10})
  void aPayloadIsNotCombinedWithTheHeadOfAnotherRow(int callSize) throws IOException {
    JsonObject row = golden("an expired message");
    Cell lonely = cells(Golden.bytes(row, "key"), Golden.bytes(row, "value")).get(0);
    JsonObject next = golden("a reference row of an invalid transaction");
    byte[] key = Golden.bytes(next, "key");
    List<Cell> before = new ArrayList<>(List.of(lonely));
    before.addAll(cells(key, Golden.bytes(next, "value")));
    List<Cell> expected = new ArrayList<>(List.of(lonely));
    expected.addAll(cells(key, Golden.bytes(next, "becomes")));

    List<Cell> after =
        written(cleaner(new Source(before, callSize), Table.MESSAGE, Golden.stateOfRows()));

    assertSame(expected, after, "both are there");
  }

  @Test
  void aPayloadThatWaitsIsCopiedBeforeItsMemoryIsReused() throws IOException {
    JsonObject row = golden("a live message");
    List<Cell> before = cells(Golden.bytes(row, "key"), Golden.bytes(row, "value"));
    KeyValue payload = (KeyValue) before.get(0);
    byte[] content = CellUtil.cloneValue(payload);
    CleaningScanner cleaner =
        cleaner(new Source(before, 1), Table.MESSAGE, Golden.stateOfRows());
    List<Cell> out = new ArrayList<>();
    cleaner.next(out);
    cleaner.shipped();
    Arrays.fill(payload.getBuffer(), (byte) 0xEE);

    cleaner.next(out);

    assertArrayEquals(content, CellUtil.cloneValue(out.get(0)));
  }

  @Test
  void anInvertedRowIsANewCellWithTheTagsOfTheOld() throws IOException {
    JsonObject row = golden("a message of an invalid transaction");
    byte[] key = Golden.bytes(row, "key");
    byte[] value = Golden.bytes(row, "value");
    Tag lives = new ArrayBackedTag((byte) 8, new byte[] {0, 0, 0, 0, 0, 0, 1, 0});
    KeyValue head = cell(key, HEAD, Arrays.copyOf(value, headSize(value)), lives);
    byte[] before = head.getBuffer().clone();
    Source source = new Source(List.of(cells(key, value).get(0), head), 10);

    List<Cell> after = written(cleaner(source, Table.MESSAGE, Golden.stateOfRows()));

    assertArrayEquals(before, head.getBuffer());
    assertArrayEquals(((RawCell) head).cloneTags(), ((RawCell) after.get(1)).cloneTags());
  }

  @Test
  void afterAnErrorAllCellsPassUnchanged() throws IOException {
    JsonObject expired = golden("an expired message");
    JsonObject invalid = golden("a message of an invalid transaction");
    List<Cell> before = cells(Golden.bytes(invalid, "key"), Golden.bytes(invalid, "value"));
    before.addAll(cells(Golden.bytes(expired, "key"), Golden.bytes(expired, "value")));
    Cells failing =
        new Cells(
            Table.MESSAGE,
            () -> {
              throw new IllegalStateException("a bug");
            });
    CleaningScanner cleaner =
        new CleaningScanner(new Source(before, 2), failing, Golden.stateOfRows(), done -> {});

    assertEquals(before, written(cleaner));
    assertEquals(Optional.empty(), cleaner.stillCarried());
  }

  @Test
  void anErrorOfTheSourceIsThrown() {
    InternalScanner failing =
        new InternalScanner() {
          @Override
          public boolean next(List<Cell> out, ScannerContext context) throws IOException {
            throw new IOException("the disk");
          }

          @Override
          public void close() {}
        };

    assertThrows(
        IOException.class,
        () -> cleaner(failing, Table.MESSAGE, Golden.stateOfRows()).next(new ArrayList<>()));
  }

  @Test
  void shippedAndCloseReachTheSourceAndTheCallback() throws IOException {
    JsonObject row = golden("an expired message");
    Source source = new Source(cells(Golden.bytes(row, "key"), Golden.bytes(row, "value")), 10);
    Cells cells = new Cells(Table.MESSAGE, RawCellBuilderFactory::create);
    List<Counts> told = new ArrayList<>();

    written(
        new CleaningScanner(
            source, cells, Golden.stateOfRows(), done -> told.add(done.counts())));

    assertEquals(1, source.shipped);
    assertTrue(source.isClosed);
    assertEquals(List.of(new Counts(1, 0, 0)), told);
  }

  @Test
  void aRowOfAnUnknownTopicStillCarriesItsPointer() throws IOException {
    JsonObject row = golden("a message of an invalid transaction and an unknown topic");
    Source source = new Source(cells(Golden.bytes(row, "key"), Golden.bytes(row, "value")), 10);
    CleaningScanner cleaner = cleaner(source, Table.MESSAGE, Golden.stateOfRows());

    written(cleaner);

    assertEquals(Optional.of(Set.of(1_479_999_990_000_000_066L)), cleaner.stillCarried());
  }

  @Test
  void aRowThatCannotBeReadMayCarryAnyPointer() throws IOException {
    JsonObject row = golden("an expired message with a flipped bit");
    Source source = new Source(cells(Golden.bytes(row, "key"), Golden.bytes(row, "value")), 10);
    CleaningScanner cleaner = cleaner(source, Table.MESSAGE, Golden.stateOfRows());

    written(cleaner);

    assertEquals(Optional.empty(), cleaner.stillCarried());
    assertEquals(new Counts(0, 0, 1), cleaner.counts());
  }

  @Test
  void aStateWithoutTopicsKeepsEverything() throws IOException {
    JsonObject row = golden("an expired message");
    List<Cell> before = cells(Golden.bytes(row, "key"), Golden.bytes(row, "value"));
    RetentionState empty = new RetentionState(Long.MAX_VALUE / 2, 0, Map.of(), Set.of(), Set.of());

    assertEquals(before, written(cleaner(new Source(before, 10), Table.MESSAGE, empty)));
  }
}
