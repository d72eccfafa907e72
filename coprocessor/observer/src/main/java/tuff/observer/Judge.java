package tuff.observer;

import java.util.HashSet;
import java.util.Optional;
import java.util.Set;

/** Judges row after row by one state, and counts. Used by one thread. */
final class Judge {

  private final State state;
  private final Set<Long> stillCarried = new HashSet<>();
  private long dropped;
  private long inverted;
  private long unreadable;

  Judge(State state) {
    this.state = state;
  }

  State state() {
    return state;
  }

  /** What becomes of a row. One that can't be read is kept, and counted. */
  Fate judge(StoredRow stored) {
    Optional<Row> read = stored.read();
    if (read.isEmpty()) {
      unreadable++;
      return Fate.KEEP;
    }
    Row row = read.get();
    Fate fate = Rules.fate(row, state.topics().get(stored.topic()), state);
    switch (fate) {
      case DROP -> dropped++;
      case INVERT -> inverted++;
      case KEEP -> noteCarried(row);
    }
    return fate;
  }

  Counts counts() {
    return new Counts(dropped, inverted, unreadable);
  }

  /** Invalid pointers that rows were met with and that they still have: their topic is unknown. */
  Set<Long> stillCarried() {
    return Set.copyOf(stillCarried);
  }

  private void noteCarried(Row row) {
    if (row.table() == Table.MESSAGE && state.invalid().contains(row.pointer())) {
      stillCarried.add(row.pointer());
    }
  }
}
