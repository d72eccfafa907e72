package tuff.observer;

import java.io.IOException;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionRequest;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Retention in the flushes and compactions of one region, and the records of what they did. */
final class Region {

  private static final Logger LOG = LoggerFactory.getLogger(Region.class);
  private static final String FLUSH = "flush";
  private static final String MINOR = "minor";
  private static final String MAJOR = "major"; // of all files

  private final RegionCoprocessorEnvironment environment;
  private final Table table;
  private final SharedDirectory shared;
  private final String name;
  private final ClearedPointers clearedPointers = new ClearedPointers();
  private final WeakIdentityMap<CleaningScanner> compactions = new WeakIdentityMap<>();
  private final Consumer<RetentionState> whenRead = this::recordIfEmpty;
  private volatile Optional<RetentionState> beforeFlush = Optional.empty();
  private RetentionState emptyAt; // the last state with which it was found empty

  private Region(RegionCoprocessorEnvironment environment, Table table, SharedDirectory shared) {
    this.environment = environment;
    this.table = table;
    this.shared = shared;
    this.name = environment.getRegionInfo().getEncodedName();
  }

  /**
   * Begin retention in a region.
   *
   * @throws IllegalArgumentException the table's arguments are wrong.
   */
  static Region open(RegionCoprocessorEnvironment environment) throws IOException {
    Arguments arguments = Arguments.of(environment.getConfiguration());
    SharedDirectory shared =
        SharedDirectory.open(
            environment.getSharedData(), arguments, environment.getConfiguration());
    Region region = new Region(environment, arguments.table(), shared);
    shared.directory().addReader(region.whenRead);
    return region;
  }

  void close() {
    shared.directory().removeReader(whenRead);
    shared.close();
  }

  void flushBegins() {
    beforeFlush = shared.directory().current();
  }

  InternalScanner flushed(InternalScanner scanner) {
    Optional<CleaningScanner> cleaner = cleaned(scanner, FLUSH, done -> record(FLUSH, done));
    return cleaner.isPresent() ? cleaner.get() : scanner;
  }

  void flushEnds() {
    beforeFlush.ifPresent(clearedPointers::memoryWasEmptied);
  }

  void selectionBegins() {
    Optional<RetentionState> before = shared.directory().current();
    if (isMemoryEmpty()) {
      before.ifPresent(clearedPointers::memoryWasEmptied);
    }
  }

  void selected(CompactionRequest request) {
    clearedPointers.selected(request);
  }

  InternalScanner compacted(InternalScanner scanner, CompactionRequest request) {
    Optional<CleaningScanner> cleaner = cleaned(scanner, kind(request), done -> {});
    cleaner.ifPresent(found -> compactions.put(request, found));
    return cleaner.isPresent() ? cleaner.get() : scanner;
  }

  void compactionEnds(CompactionRequest request) {
    compactions
        .take(request)
        .ifPresent(
            cleaner -> {
              if (request.isAllFiles()) {
                cleaner
                    .stillCarried()
                    .ifPresent(
                        carried -> clearedPointers.compacted(request, cleaner.state(), carried));
              }
              record(kind(request), cleaner);
            });
  }

  private Optional<CleaningScanner> cleaned(
      InternalScanner scanner, String kind, Consumer<CleaningScanner> whenClosed) {
    Optional<RetentionState> state = shared.directory().current();
    if (state.isEmpty()) {
      LOG.info("retention, {} of {}: all rows are kept, since there is no state", kind, name);
    }
    Cells cells = new Cells(table, environment::getCellBuilder);
    return state.map(by -> new CleaningScanner(scanner, cells, by, whenClosed));
  }

  private static String kind(CompactionRequest request) {
    return request.isAllFiles() ? MAJOR : MINOR;
  }

  private void record(String kind, CleaningScanner cleaner) {
    Counts counts = cleaner.counts();
    LOG.info(
        "retention, {} of {}: dropped {}, inverted {}, could not read {}, by the state of {}",
        kind,
        name,
        counts.dropped(),
        counts.inverted(),
        counts.unreadable(),
        cleaner.state().nowMs());
    record(kind, cleaner.state(), counts);
  }

  private void record(String kind, RetentionState state, Counts counts) {
    boolean tellsCleared = kind.equals(MAJOR) && table == Table.MESSAGE;
    Set<Long> cleared = tellsCleared ? clearedPointers.cleared() : Set.of();
    long nowMs = System.currentTimeMillis();
    RegionRecord record = new RegionRecord(name, state.nowMs(), nowMs, counts, cleared);
    shared.directory().record(name + "." + kind, record.toBytes());
  }

  /**
   * Record an empty region as if it had been compacted. It never is, and without a record no
   * pointer would ever be pruned.
   */
  private void recordIfEmpty(RetentionState state) {
    boolean isNews = emptyAt == null || !emptyAt.invalid().equals(state.invalid());
    // Memory first: rows that a flush writes in between are in a file when files are counted.
    if (isNews && isMemoryEmpty() && hasNoFiles()) {
      emptyAt = state;
      clearedPointers.wasEmpty(state);
      record(MAJOR, state, Counts.NONE);
    }
  }

  private boolean isMemoryEmpty() {
    return environment.getRegion().getMemStoreDataSize() == 0;
  }

  private boolean hasNoFiles() {
    return environment.getRegion().getStores().stream().mapToInt(Store::getStorefilesCount).sum()
        == 0;
  }
}
