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

/** The decisions of the golden cases, which the server's tests check too. */
final class DecisionTest {

  @TestFactory
  Stream<DynamicTest> decisionsFollowTheGoldenCases() throws IOException {
    JsonObject golden = Golden.retention();
    return StreamSupport.stream(golden.getAsJsonArray("cases").spliterator(), false)
        .map(JsonElement::getAsJsonObject)
        .map(each -> dynamicTest(each.get("name").getAsString(), () -> decide(golden, each)));
  }

  private static void decide(JsonObject golden, JsonObject given) {
    RetainedRow row =
        new RetainedRow(
            Table.named(given.get("table").getAsString()),
            given.get("generation").getAsInt(),
            Golden.offset(given.getAsJsonArray("place")),
            given.has("tx_pointer") ? given.get("tx_pointer").getAsLong() : 0,
            given.has("ttl_s") ? given.get("ttl_s").getAsLong() : RetainedRow.NO_TTL);

    Decision decision = Decision.of(row, topic(golden, given), Golden.state(golden, Map.of()));

    String expected = given.get("fate").getAsString().toUpperCase(Locale.ROOT);
    assertEquals(Decision.valueOf(expected), decision);
  }

  private static TopicRule topic(JsonObject golden, JsonObject given) {
    if (given.has("topic") && given.get("topic").isJsonNull()) {
      return null;
    }
    String name = given.has("topic") ? given.get("topic").getAsString() : "topic";
    TopicRule rule = Golden.rule(golden.getAsJsonObject(name));
    return given.has("floor")
        ? new TopicRule(
            rule.generation(), rule.ttlS(), Golden.offset(given.getAsJsonArray("floor")))
        : rule;
  }
}
