package tuff.observer;

import java.io.IOException;
import java.util.ArrayList;
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
 * The cells that a flush or a compaction is to write, less those of rows that are dead.
 *
 * <p>A row is judged as a whole, by its payload and its head. They come in this order, and nearly
 * always from one call, which ends early after ten cells. So what is held back until the next call is
 * one payload at the most, with what follows it. Delete markers pass.
 *
 * <p>Used by one thread. Whatever goes wrong in here, the cells pass as they came.
 */
final class Cleaner implements InternalScanner, Shipper {

  private static final Logger LOG = LoggerFactory.getLogger(Cleaner.class);
  private static final int NOWHERE = -1;

  private final InternalScanner source;
  private final Cells cells;
  private final Judge judge;
  private final Consumer<Cleaner> whenClosed;
  private final List<Cell> taken = new ArrayList<>();
  private final List<Cell> cleaned = new ArrayList<>();
  private final List<Cell> held = new ArrayList<>(); // a payload whose head may come, and behind it
  private boolean hasFailed;

  Cleaner(InternalScanner source, Cells cells, Judge judge, Consumer<Cleaner> whenClosed) {
    this.source = source;
    this.cells = cells;
    this.judge = judge;
    this.whenClosed = whenClosed;
  }

  State state() {
    return judge.state();
  }

  Counts counts() {
    return judge.counts();
  }

  /** Invalid pointers that rows still carry; empty where nobody knows, since some went unread. */
  Optional<Set<Long>> stillCarried() {
    boolean isKnown = !hasFailed && judge.counts().unreadable() == 0;
    return isKnown ? Optional.of(judge.stillCarried()) : Optional.empty();
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
      // The memory that it lies in may be used for something else from now on.
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
      LOG.error("rows are written as they are from here on", error);
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
        judge(cell, payloadAt);
        payloadAt = NOWHERE;
      } else {
        cleaned.add(cell);
      }
    }
    if (hasMore && payloadAt != NOWHERE) {
      // With all that follows it, since cells are written in their order.
      List<Cell> open = cleaned.subList(payloadAt, cleaned.size());
      held.addAll(open);
      open.clear();
    }
  }

  private void judge(Cell head, int payloadAt) throws IOException {
    Cell before = payloadAt == NOWHERE ? null : cleaned.get(payloadAt);
    Cell payload = before != null && CellUtil.matchingRows(before, head) ? before : null;
    StoredRow row = cells.row(head, payload);
    switch (judge.judge(row)) {
      case KEEP -> cleaned.add(head);
      case INVERT -> cleaned.add(cells.head(head, row.inverted()));
      case DROP -> {
        if (payload != null) {
          cleaned.remove(payloadAt);
        }
      }
    }
  }
}
