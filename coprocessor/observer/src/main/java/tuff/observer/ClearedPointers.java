package tuff.observer;

import java.util.HashSet;
import java.util.Set;

/**
 * The invalid pointers that no row of one region carries any more.
 *
 * <p>A state lists a pointer only after the last write under it. From then on, rows with the
 * pointer are in files or in memory. To clear it takes two steps, in this order: memory is flushed,
 * or found empty, while such a state is known; then a compaction of all files that exist by then
 * uses a state that lists the pointer as well. A compaction alone is not enough, since rows in
 * memory are written to files later.
 *
 * <p>Threads of flushes and compactions call; the object's lock guards all fields.
 */
final class ClearedPointers {

  private final WeakIdentityMap<Set<Long>> outOfMemoryAtSelection = new WeakIdentityMap<>();
  private Set<Long> outOfMemory = Set.of();
  private Set<Long> cleared = Set.of();

  /** Memory was flushed, or was empty, after this state was known. */
  synchronized void memoryWasEmptied(RetentionState after) {
    outOfMemory = after.invalid();
  }

  /** A compaction begins to select its files; its request identifies it. */
  synchronized void selected(Object request) {
    outOfMemoryAtSelection.put(request, outOfMemory);
  }

  /** A compaction replaced all files that it had selected, with this state. */
  synchronized void compacted(Object request, RetentionState by, Set<Long> stillCarried) {
    Set<Long> proven = new HashSet<>(outOfMemoryAtSelection.take(request).orElse(Set.of()));
    proven.addAll(cleared); // these stay cleared: there are no more writes under them
    proven.retainAll(by.invalid());
    proven.removeAll(stillCarried);
    cleared = Set.copyOf(proven);
  }

  /** The region had no files and nothing in memory, after this state was known. */
  synchronized void wasEmpty(RetentionState after) {
    outOfMemory = after.invalid();
    cleared = after.invalid();
  }

  synchronized Set<Long> cleared() {
    return cleared;
  }
}
