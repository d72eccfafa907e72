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

/** Retention of one region: what its flushes and compactions do, and what they prove. */
final class Region {

  private static final Logger LOG = LoggerFactory.getLogger(Region.class);
  private static final String FLUSH = "flush";
  private static final String MINOR = "minor";
  private static final String MAJOR = "major"; // of all files, whatever becomes of delete markers

  private final RegionCoprocessorEnvironment environment;
  private final Table table;
  private final SharedExchange shared;
  private final String name;
  private final Proofs proofs = new Proofs();
  private final ByIdentity<Cleaner> compactions = new ByIdentity<>();
  private final Consumer<State> look = this::look;
  private volatile Optional<State> beforeFlush = Optional.empty();
  private State foundEmptyAt; // of the exchange's thread

  private Region(RegionCoprocessorEnvironment environment, Table table, SharedExchange shared) {
    this.environment = environment;
    this.table = table;
    this.shared = shared;
    this.name = environment.getRegionInfo().getEncodedName();
  }

  /**
   * A region that takes part from now on.
   *
   * @throws IllegalArgumentException the table's arguments make no sense.
   */
  static Region open(RegionCoprocessorEnvironment environment) throws IOException {
    Arguments arguments = Arguments.of(environment.getConfiguration());
    SharedExchange shared =
        SharedExchange.open(
            environment.getSharedData(), arguments, environment.getConfiguration());
    Region region = new Region(environment, arguments.table(), shared);
    shared.exchange().addReader(region.look);
    return region;
  }

  void close() {
    shared.exchange().removeReader(look);
    shared.close();
  }

  void flushBegins() {
    beforeFlush = shared.exchange().current();
  }

  InternalScanner flushed(InternalScanner scanner) {
    Optional<Cleaner> cleaner = cleaned(scanner, FLUSH, done -> record(FLUSH, done));
    return cleaner.isPresent() ? cleaner.get() : scanner;
  }

  void flushEnds() {
    beforeFlush.ifPresent(proofs::memoryWasEmptied);
  }

  void selectionBegins() {
    Optional<State> before = shared.exchange().current();
    if (isMemoryEmpty()) {
      before.ifPresent(proofs::memoryWasEmptied);
    }
  }

  void selected(CompactionRequest request) {
    proofs.selected(request);
  }

  InternalScanner compacted(InternalScanner scanner, CompactionRequest request) {
    Optional<Cleaner> cleaner = cleaned(scanner, kind(request), done -> {});
    cleaner.ifPresent(found -> compactions.put(request, found));
    return cleaner.isPresent() ? cleaner.get() : scanner;
  }

  void compactionEnds(CompactionRequest request) {
    compactions
        .take(request)
        .ifPresent(
            cleaner -> {
              if (request.isAllFiles()) {
                prove(request, cleaner);
              }
              record(kind(request), cleaner);
            });
  }

  private void prove(CompactionRequest request, Cleaner cleaner) {
    cleaner.stillCarried().ifPresent(held -> proofs.compacted(request, cleaner.state(), held));
  }

  private Optional<Cleaner> cleaned(
      InternalScanner scanner, String kind, Consumer<Cleaner> whenClosed) {
    Optional<State> state = shared.exchange().current();
    if (state.isEmpty()) {
      LOG.info("retention, {} of {}: all is kept, there is no state to go by", kind, name);
    }
    Cells cells = new Cells(table, environment::getCellBuilder);
    return state.map(by -> new Cleaner(scanner, cells, new Judge(by), whenClosed));
  }

  private static String kind(CompactionRequest request) {
    return request.isAllFiles() ? MAJOR : MINOR;
  }

  private void record(String kind, Cleaner cleaner) {
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

  private void record(String kind, State state, Counts counts) {
    boolean isProof = kind.equals(MAJOR) && table == Table.MESSAGE;
    Set<Long> cleared = isProof ? proofs.cleared() : Set.of();
    long nowMs = System.currentTimeMillis();
    RegionRecord record = new RegionRecord(name, state.nowMs(), nowMs, counts, cleared);
    shared.exchange().record(name + "." + kind, record.toBytes());
  }

  /** A region without files is never compacted, and would hold up the others for ever. */
  private void look(State state) {
    boolean isNews = foundEmptyAt == null || !foundEmptyAt.invalid().equals(state.invalid());
    // Memory first: what leaves it in between is in a file by the second look.
    if (isNews && isMemoryEmpty() && hasNoFiles()) {
      foundEmptyAt = state;
      proofs.wasEmpty(state);
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
