import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.LongStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * KafkaLoad ADDR SECONDS WARM_SECONDS (produce|transaction):CLIENTS ...: a closed loop of Kafka's own clients, each call
 * one message of 256 bytes to a topic of one partition; a line of JSON for each argument.
 */
public final class KafkaLoad {
  private static final byte[] PAYLOAD = new byte[256];

  private interface Call {
    void once() throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    long nanos = (long) (Double.parseDouble(arguments[1]) * 1e9);
    long warm = (long) (Double.parseDouble(arguments[2]) * 1e9);
    try (Admin admin = Admin.create(properties(arguments[0]))) {
      for (int i = 3; i < arguments.length; i++) {
        String kind = arguments[i].split(":")[0];
        int clients = Integer.parseInt(arguments[i].split(":")[1]);
        String topic = kind + "-" + i;
        admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        List<Call> calls = kind.equals("produce")
            ? producing(arguments[0], topic, clients, producers)
            : transacting(arguments[0], topic, clients, producers);
        System.out.println(run(calls, warm, nanos));
        producers.forEach(KafkaProducer::close);
      }
    }
    System.exit(0);
  }

  // One producer is shared, as Kafka advises: it batches what its threads send.
  private static List<Call> producing(
      String addr, String topic, int clients, List<KafkaProducer<byte[], byte[]>> producers) {
    KafkaProducer<byte[], byte[]> producer = producer(addr, properties(addr));
    producers.add(producer);
    List<Call> calls = new ArrayList<>();
    for (int i = 0; i < clients; i++) {
      calls.add(() -> producer.send(new ProducerRecord<>(topic, PAYLOAD)).get());
    }
    return calls;
  }

  // A producer has one transaction at a time, so each client has its own.
  private static List<Call> transacting(
      String addr, String topic, int clients, List<KafkaProducer<byte[], byte[]>> producers) {
    List<Call> calls = new ArrayList<>();
    for (int i = 0; i < clients; i++) {
      Properties properties = properties(addr);
      properties.put("transactional.id", topic + "-" + i);
      properties.put("retry.backoff.ms", "1"); // else it sleeps 100 ms while the last commit is being finished
      KafkaProducer<byte[], byte[]> producer = producer(addr, properties);
      producer.initTransactions();
      producers.add(producer);
      calls.add(() -> {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, PAYLOAD));
        producer.commitTransaction();
      });
    }
    return calls;
  }

  private static KafkaProducer<byte[], byte[]> producer(String addr, Properties properties) {
    return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
  }

  private static Properties properties(String addr) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", addr);
    properties.put("acks", "all");
    properties.put("linger.ms", "0");
    return properties;
  }

  private static String run(List<Call> calls, long warm, long nanos) throws Exception {
    long begin = System.nanoTime() + warm;
    long end = begin + nanos;
    long[][] latencies = new long[calls.size()][];
    AtomicReference<Exception> first = new AtomicReference<>();
    List<Thread> threads = new ArrayList<>();
    for (int i = 0; i < calls.size(); i++) {
      int client = i;
      threads.add(new Thread(() -> latencies[client] = loop(calls.get(client), begin, end, first)));
    }
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    long[] all = java.util.Arrays.stream(latencies).flatMapToLong(LongStream::of)
        .sorted().toArray();
    String error = first.get() == null ? "" : first.get().toString().replaceAll("[^ -~]|[\"\\\\]", " ");
    return String.format(
        Locale.ROOT,
        "{\"calls\":%d,\"messages\":%d,\"per_s\":%.1f,\"messages_per_s\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,"
            + "\"errors\":%d,\"first_error\":\"%s\"}",
        all.length, all.length, all.length * 1e9 / nanos, all.length * 1e9 / nanos,
        quantile(all, 0.5), quantile(all, 0.99), error.isEmpty() ? 0 : 1, error);
  }

  private static long[] loop(Call call, long begin, long end, AtomicReference<Exception> first) {
    LongStream.Builder found = LongStream.builder();
    long sent = System.nanoTime();
    while (sent < end) {
      try {
        call.once();
      } catch (Exception error) {
        first.compareAndSet(null, error);
        break;
      }
      long ended = System.nanoTime();
      if (ended >= begin && ended < end) {
        found.add(ended - sent);
      }
      sent = ended;
    }
    return found.build().toArray();
  }

  private static double quantile(long[] sorted, double share) {
    return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (share * sorted.length))] / 1e3;
  }
}
