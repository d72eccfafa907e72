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
 * The directory that the server and the regions of one region server share. One daemon thread reads
 * the state periodically, and writes the records of the regions. Flushes and compactions never wait
 * for it.
 *
 * <p>While the state is missing, unreadable or stale, there is no current state, and nothing is
 * removed.
 */
final class ObserverDirectory {

  /** An older state would do no harm, but the server that wrote it seems to be gone. */
  static final long STALE_MS = TimeUnit.HOURS.toMillis(1);

  private static final Logger LOG = LoggerFactory.getLogger(ObserverDirectory.class);

  private final Files files;
  private final LongSupplier clockMs;
  private final ScheduledExecutorService thread;
  private final Set<Consumer<RetentionState>> readers = ConcurrentHashMap.newKeySet();
  private final Map<String, byte[]> unwritten = new ConcurrentHashMap<>();
  private volatile RetentionState newest;
  private String problem = ""; // why there is no state

  /** Access to the files. Calls may block; one thread makes them. */
  interface Files {

    /** The whole file with the state, if it exists. */
    Optional<byte[]> readState() throws IOException;

    /** Replace the record of that name. */
    void writeRecord(String name, byte[] record) throws IOException;
  }

  ObserverDirectory(Files files, LongSupplier clockMs) {
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

  /** Begin to read the state periodically. */
  void start(long refreshMs) {
    thread.scheduleWithFixedDelay(this::refresh, 0, refreshMs, TimeUnit.MILLISECONDS);
  }

  /** Write the records that wait, and end the thread. */
  void stop() {
    thread.shutdown();
  }

  /** The newest state, unless it is stale. */
  Optional<RetentionState> current() {
    RetentionState state = newest;
    boolean isFresh = state != null && Math.abs(clockMs.getAsLong() - state.nowMs()) <= STALE_MS;
    return isFresh ? Optional.of(state) : Optional.empty();
  }

  /** Call the reader with each state that is read, in the thread of this object. */
  void addReader(Consumer<RetentionState> reader) {
    readers.add(reader);
  }

  void removeReader(Consumer<RetentionState> reader) {
    readers.remove(reader);
  }

  /** Write a record soon, or the newest one of that name if there are more until then. */
  void record(String name, byte[] record) {
    unwritten.put(name, record);
    try {
      thread.execute(this::writeRecords);
    } catch (RejectedExecutionException stopped) {
      LOG.warn("retention: the record {} is not written, since the last region is closed", name);
    }
  }

  /** Read the state, and write the records that wait. */
  synchronized void refresh() {
    try {
      newest = read();
      noteProblem("");
    } catch (IOException | RuntimeException | LinkageError error) {
      newest = null;
      noteProblem(error.toString());
    }
    current().ifPresent(state -> readers.forEach(reader -> call(reader, state)));
    writeRecords();
  }

  private RetentionState read() throws IOException {
    Optional<byte[]> file = files.readState();
    if (file.isEmpty()) {
      throw new IOException("the file does not exist");
    }
    return RetentionState.read(file.get());
  }

  private void noteProblem(String now) {
    if (!now.equals(problem)) {
      problem = now;
      LOG.info(
          "retention: {}",
          now.isEmpty() ? "the state was read" : "no state, all rows are kept: " + now);
    }
  }

  private static void call(Consumer<RetentionState> reader, RetentionState state) {
    try {
      reader.accept(state);
    } catch (RuntimeException | LinkageError error) {
      LOG.error("retention: a region failed to handle a new state", error);
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
        // The next refresh tries again; until then less can be pruned.
        LOG.warn("retention: the record {} is not written: {}", name, error.toString());
      }
    }
  }
}
