package tuff.observer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.hbase.thirdparty.com.google.gson.JsonArray;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.apache.hbase.thirdparty.com.google.gson.JsonParser;

/** The golden files, which the server's tests read too. */
final class Golden {

  private static final HexFormat HEX = HexFormat.of();

  private Golden() {}

  static JsonObject retention() throws IOException {
    return JsonParser.parseString(text("retention.json")).getAsJsonObject();
  }

  static byte[] bytes(String name) throws IOException {
    return HEX.parseHex(text(name).strip());
  }

  static byte[] bytes(JsonObject from, String name) {
    return HEX.parseHex(from.get(name).getAsString());
  }

  /** The state that the stored rows of the golden cases are judged by. */
  static RetentionState stateOfRows() throws IOException {
    JsonObject rows = retention().getAsJsonObject("rows");
    Map<ByteBuffer, TopicRule> topics = new HashMap<>();
    for (Map.Entry<String, JsonElement> topic : rows.getAsJsonObject("topics").entrySet()) {
      byte[] name = topic.getKey().getBytes(StandardCharsets.UTF_8);
      topics.put(ByteBuffer.wrap(name), rule(topic.getValue().getAsJsonObject()));
    }
    return state(rows, topics);
  }

  static RetentionState state(JsonObject from, Map<ByteBuffer, TopicRule> topics) {
    return new RetentionState(
        from.get("now_ms").getAsLong(),
        from.get("longest_transaction_ms").getAsLong(),
        topics,
        pointers(from.getAsJsonArray("in_progress")),
        pointers(from.getAsJsonArray("invalid")));
  }

  static TopicRule rule(JsonObject from) {
    return new TopicRule(
        from.get("generation").getAsInt(),
        from.get("ttl_s").getAsLong(),
        offset(from.getAsJsonArray("floor")));
  }

  static Offset offset(JsonArray from) {
    return new Offset(from.get(0).getAsLong(), from.get(1).getAsInt());
  }

  private static Set<Long> pointers(JsonArray from) {
    Set<Long> pointers = new LinkedHashSet<>();
    from.forEach(pointer -> pointers.add(pointer.getAsLong()));
    return pointers;
  }

  private static String text(String name) throws IOException {
    return Files.readString(Path.of(System.getProperty("tuff.golden"), name));
  }
}
