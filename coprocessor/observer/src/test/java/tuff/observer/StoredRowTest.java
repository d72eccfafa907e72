package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.io.IOException;
import java.util.Locale;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.hbase.thirdparty.com.google.gson.JsonArray;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The decision for stored rows, byte for byte as in the golden cases. */
final class StoredRowTest {

  @TestFactory
  Stream<DynamicTest> storedRowsFollowTheGoldenCases() throws IOException {
    RetentionState state = Golden.stateOfRows();
    return StreamSupport.stream(cases().spliterator(), false)
        .map(JsonElement::getAsJsonObject)
        .map(each -> dynamicTest(each.get("name").getAsString(), () -> judge(each, state)));
  }

  @TestFactory
  Stream<DynamicTest> aFlippedBitMakesARowUnreadable() throws IOException {
    JsonObject whole = cases().get(0).getAsJsonObject();
    byte[] key = Golden.bytes(whole, "key");
    byte[] value = Golden.bytes(whole, "value");
    return Stream.iterate(0, bit -> bit < value.length * 8, bit -> bit + 1)
        .map(
            bit ->
                dynamicTest(
                    "bit " + bit,
                    () -> {
                      byte[] flipped = value.clone();
                      flipped[bit / 8] ^= (byte) (1 << (bit % 8));
                      assertFalse(new StoredRow(Table.MESSAGE, key, flipped).read().isPresent());
                    }));
  }

  private static JsonArray cases() throws IOException {
    return Golden.retention().getAsJsonObject("rows").getAsJsonArray("cases");
  }

  private static void judge(JsonObject given, RetentionState state) {
    byte[] key = Golden.bytes(given, "key");
    byte[] value = Golden.bytes(given, "value");
    byte[] valueBefore = value.clone();
    Table table = key[0] == Table.PAYLOAD.tag ? Table.PAYLOAD : Table.MESSAGE;
    StoredRow stored = new StoredRow(table, key, value);

    Decision decision =
        stored
            .read()
            .map(row -> Decision.of(row, state.topics().get(stored.topic()), state))
            .orElse(Decision.KEEP);

    String expected = given.get("fate").getAsString().toUpperCase(Locale.ROOT);
    assertEquals(Decision.valueOf(expected), decision);
    if (decision == Decision.INVERT) {
      assertArrayEquals(Golden.bytes(given, "becomes"), stored.inverted());
    }
    assertArrayEquals(valueBefore, value);
  }
}
