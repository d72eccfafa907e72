package tuff.observer;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.regionserver.Shipper;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Passes the cells that a flush or a compaction writes, without those of rows that retention drops.
 *
 * <p>The decision needs both cells of a row, first the payload and then the head. One call nearly
 * always returns both, but it ends after ten cells. So the last payload of a call may have to wait
 * for the next call, together with the cells behind it. Delete markers always pass.
 *
 * <p>Used by one thread. After an error in this class, all cells pass unchanged.
 */
final class CleaningScanner implements InternalScanner, Shipper {

  private static final Logger LOG = LoggerFactory.getLogger(CleaningScanner.class);
  private static final int NOWHERE = -1;

  private final InternalScanner source;
  private final Cells cells;
  private final RetentionState state;
  private final Consumer<CleaningScanner> whenClosed;
  private final List<Cell> taken = new ArrayList<>();
  private final List<Cell> cleaned = new ArrayList<>();
  private final List<Cell> held = new ArrayList<>(); // a payload without its head, and cells behind
  private final Set<Long> stillCarried = new HashSet<>();
  private long dropped;
  private long inverted;
  private long unreadable;
  private boolean hasFailed;

  CleaningScanner(
      InternalScanner source,
      Cells cells,
      RetentionState state,
      Consumer<CleaningScanner> whenClosed) {
    this.source = source;
    this.cells = cells;
    this.state = state;
    this.whenClosed = whenClosed;
  }

  RetentionState state() {
    return state;
  }

  Counts counts() {
    return new Counts(dropped, inverted, unreadable);
  }

  /**
   * The invalid pointers of rows that stay, since their topic is unknown. Empty if some rows could
   * not be read.
   */
  Optional<Set<Long>> stillCarried() {
    boolean isKnown = !hasFailed && unreadable == 0;
    return isKnown ? Optional.of(Set.copyOf(stillCarried)) : Optional.empty();
  }

  @Override
  public boolean next(List<Cell> out, ScannerContext context) throws IOException {
    taken.clear();
    boolean hasMore = source.next(taken, context);
    taken.addAll(0, held);
    held.clear();
    out.addAll(hasFailed ? taken : cleanedOrAll(hasMore));
    return hasMore;
  }

  @Override
  public void shipped() throws IOException {
    for (int index = 0; index < held.size(); index++) {
      // HBase reuses the memory of a cell after this call.
      held.set(index, cells.copy(held.get(index)));
    }
    if (source instanceof Shipper shipper) {
      shipper.shipped();
    }
  }

  @Override
  public void close() throws IOException {
    source.close();
    whenClosed.accept(this);
  }

  private List<Cell> cleanedOrAll(boolean hasMore) {
    cleaned.clear();
    try {
      clean(hasMore);
      return cleaned;
    } catch (IOException | RuntimeException | LinkageError error) {
      LOG.error("retention: all further rows of this file are kept", error);
      hasFailed = true;
      held.clear();
      return taken;
    }
  }

  private void clean(boolean hasMore) throws IOException {
    int payloadAt = NOWHERE;
    for (Cell cell : taken) {
      if (Cells.isPayload(cell)) {
        payloadAt = cleaned.size();
        cleaned.add(cell);
      } else if (Cells.isHead(cell)) {
        addHead(cell, payloadAt);
        payloadAt = NOWHERE;
      } else {
        cleaned.add(cell);
      }
    }
    if (hasMore && payloadAt != NOWHERE) {
      // Together with the cells behind it, since cells must be written in their order.
      List<Cell> open = cleaned.subList(payloadAt, cleaned.size());
      held.addAll(open);
      open.clear();
    }
  }

  private void addHead(Cell head, int payloadAt) throws IOException {
    Cell before = payloadAt == NOWHERE ? null : cleaned.get(payloadAt);
    Cell payload = before != null && CellUtil.matchingRows(before, head) ? before : null;
    StoredRow row = cells.row(head, payload);
    switch (decide(row)) {
      case KEEP -> cleaned.add(head);
      case INVERT -> cleaned.add(cells.head(head, row.inverted()));
      case DROP -> {
        if (payload != null) {
          cleaned.remove(payloadAt);
        }
      }
    }
  }

  private Decision decide(StoredRow stored) {
    Optional<RetainedRow> read = stored.read();
    if (read.isEmpty()) {
      unreadable++;
      return Decision.KEEP;
    }
    RetainedRow row = read.get();
    Decision decision = Decision.of(row, state.topics().get(stored.topic()), state);
    switch (decision) {
      case DROP -> dropped++;
      case INVERT -> inverted++;
      case KEEP -> {
        if (row.table() == Table.MESSAGE && state.invalid().contains(row.pointer())) {
          stillCarried.add(row.pointer());
        }
      }
    }
    return decision;
  }
}
