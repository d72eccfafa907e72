package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.io.IOException;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The rules decide as the golden cases say, which the server follows too. */
final class RulesTest {

  @TestFactory
  Stream<DynamicTest> retentionDecidesAsTheGoldenCasesSay() throws IOException {
    JsonObject golden = Golden.retention();
    return StreamSupport.stream(golden.getAsJsonArray("cases").spliterator(), false)
        .map(JsonElement::getAsJsonObject)
        .map(each -> dynamicTest(each.get("name").getAsString(), () -> decide(golden, each)));
  }

  private static void decide(JsonObject golden, JsonObject given) {
    Row row =
        new Row(
            Table.named(given.get("table").getAsString()),
            given.get("generation").getAsInt(),
            Golden.place(given.getAsJsonArray("place")),
            given.has("tx_pointer") ? given.get("tx_pointer").getAsLong() : 0,
            given.has("ttl_s") ? given.get("ttl_s").getAsLong() : Row.NO_TTL);

    Fate fate = Rules.fate(row, topic(golden, given), Golden.state(golden, Map.of()));

    assertEquals(Fate.valueOf(given.get("fate").getAsString().toUpperCase(Locale.ROOT)), fate);
  }

  private static TopicRule topic(JsonObject golden, JsonObject given) {
    if (given.has("topic") && given.get("topic").isJsonNull()) {
      return null;
    }
    String name = given.has("topic") ? given.get("topic").getAsString() : "topic";
    TopicRule rule = Golden.rule(golden.getAsJsonObject(name));
    return given.has("floor")
        ? new TopicRule(
            rule.generation(), rule.ttlS(), Golden.place(given.getAsJsonArray("floor")))
        : rule;
  }
}
