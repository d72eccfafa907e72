package tuff.observer;

import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The directory between the server and the regions of one region server: one daemon thread reads the
 * state again and again, and writes what regions record. Flushes and compactions never wait for it.
 *
 * <p>A state that is missing, can't be read, or is stale counts as none; nothing is removed then.
 */
final class Exchange {

  /** Older states would do no harm, but who left one lying for so long is not there any more. */
  static final long STALE_MS = TimeUnit.HOURS.toMillis(1);

  private static final Logger LOG = LoggerFactory.getLogger(Exchange.class);

  private final Files files;
  private final LongSupplier clockMs;
  private final ScheduledExecutorService thread;
  private final Set<Consumer<State>> readers = ConcurrentHashMap.newKeySet();
  private final Map<String, byte[]> unwritten = new ConcurrentHashMap<>();
  private volatile State newest;
  private String complaint = "";

  /** Where the files lie. Calls may block, and are made by one thread. */
  interface Files {

    /** The whole state; nothing where there is none. */
    Optional<byte[]> readState() throws IOException;

    /** Replaces the record of that name. */
    void writeRecord(String name, byte[] record) throws IOException;
  }

  Exchange(Files files, LongSupplier clockMs) {
    this.files = files;
    this.clockMs = clockMs;
    this.thread =
        Executors.newSingleThreadScheduledExecutor(
            work -> {
              Thread made = new Thread(work, "tuff-retention");
              made.setDaemon(true);
              return made;
            });
  }

  /** Begin to read, every so many ms. */
  void start(long refreshMs) {
    thread.scheduleWithFixedDelay(this::refresh, 0, refreshMs, TimeUnit.MILLISECONDS);
  }

  /** Write what waits, and end. */
  void stop() {
    thread.shutdown();
  }

  /** The state to go by now; nothing where there is none that can be gone by. */
  Optional<State> current() {
    State state = newest;
    boolean isFresh = state != null && Math.abs(clockMs.getAsLong() - state.nowMs()) <= STALE_MS;
    return isFresh ? Optional.of(state) : Optional.empty();
  }

  /** Be told of each state that was read, on the thread of this. */
  void addReader(Consumer<State> reader) {
    readers.add(reader);
  }

  void removeReader(Consumer<State> reader) {
    readers.remove(reader);
  }

  /** Write a record soon; a newer one of that name takes its place until then. */
  void record(String name, byte[] record) {
    unwritten.put(name, record);
    try {
      thread.execute(this::writeRecords);
    } catch (RejectedExecutionException stopped) {
      LOG.warn("the record {} comes too late to be written", name);
    }
  }

  /** Look at the state once more, and write what waits; one at a time. */
  synchronized void refresh() {
    try {
      newest = read();
      complain("");
    } catch (IOException | RuntimeException | LinkageError error) {
      newest = null;
      complain(error.toString());
    }
    current().ifPresent(state -> readers.forEach(reader -> tell(reader, state)));
    writeRecords();
  }

  private State read() throws IOException {
    Optional<byte[]> file = files.readState();
    if (file.isEmpty()) {
      throw new IOException("there is none");
    }
    return State.read(file.get());
  }

  private void complain(String now) {
    if (!now.equals(complaint)) {
      complaint = now;
      LOG.info("retention: {}", now.isEmpty() ? "a state is there" : "no state, all is kept: " + now);
    }
  }

  private static void tell(Consumer<State> reader, State state) {
    try {
      reader.accept(state);
    } catch (RuntimeException | LinkageError error) {
      LOG.error("a region could not look at itself", error);
    }
  }

  private synchronized void writeRecords() {
    for (String name : Set.copyOf(unwritten.keySet())) {
      byte[] record = unwritten.get(name);
      if (record == null) {
        continue;
      }
      try {
        files.writeRecord(name, record);
        unwritten.remove(name, record);
      } catch (IOException | RuntimeException | LinkageError error) {
        // Tried again with the next state; until then less can be pruned.
        LOG.warn("the record {} is not written: {}", name, error.toString());
      }
    }
  }
}
