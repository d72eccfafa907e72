package org.apache.spark.kafka010;

import scala.Tuple2;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/** Logs are told no parameters at all; see KafkaConfigUpdater. */
public final class KafkaRedactionUtil$ {
  public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

  private KafkaRedactionUtil$() {}

  public Seq<Tuple2<String, String>> redactParams(Seq<Tuple2<String, Object>> parameters) {
    @SuppressWarnings("unchecked")
    Seq<Tuple2<String, String>> none = (Seq<Tuple2<String, String>>) (Seq<?>) Nil$.MODULE$;
    return none;
  }
}
