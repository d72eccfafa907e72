package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * What Spark's Kafka connector asks of a jar about tokens, for brokers that ask for none. Maven does not have that jar
 * everywhere, and nothing of it is on the way of a row.
 */
public final class KafkaConfigUpdater {
  private final Map<String, Object> parameters = new HashMap<>();

  public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> parameters) {
    Iterator<Tuple2<String, Object>> entries = parameters.iterator();
    while (entries.hasNext()) {
      Tuple2<String, Object> entry = entries.next();
      this.parameters.put(entry._1(), entry._2());
    }
  }

  public KafkaConfigUpdater set(String key, Object value) {
    parameters.put(key, value);
    return this;
  }

  public KafkaConfigUpdater setIfUnset(String key, Object value) {
    parameters.putIfAbsent(key, value);
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> cluster) {
    return this;
  }

  public Map<String, Object> build() {
    return parameters;
  }
}
