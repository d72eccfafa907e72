package tuff.observer;

import java.util.HashSet;
import java.util.Set;

/**
 * Which invalid pointers no row of one region can carry any more.
 *
 * <p>A state lists a pointer once nobody can write under it. So rows that carry it are in files or in
 * memory by then, and two things have to follow, in this order: memory is written out, or found empty,
 * while such a state is known; and a compaction goes over all files that there are then, by a state
 * that lists it as well. A compaction alone proves nothing: what was in memory is written later.
 *
 * <p>Threads of flushes and of compactions call it; its lock guards all of it, and is held briefly.
 */
final class Proofs {

  private final ByIdentity<Set<Long>> selections = new ByIdentity<>();
  private Set<Long> outOfMemory = Set.of();
  private Set<Long> cleared = Set.of();

  /** Memory was written out, or was empty, all of it after this state was known. */
  synchronized void memoryWasEmptied(State after) {
    outOfMemory = after.invalid();
  }

  /** A compaction is about to choose from the files that there are; its request tells it apart. */
  synchronized void selected(Object request) {
    selections.put(request, outOfMemory);
  }

  /** The files that a compaction of all of them had chosen are gone; it went by this state. */
  synchronized void compacted(Object request, State by, Set<Long> stillCarried) {
    Set<Long> proven = new HashSet<>(selections.take(request).orElse(Set.of()));
    proven.addAll(cleared); // for good: nobody writes under them
    proven.retainAll(by.invalid());
    proven.removeAll(stillCarried);
    cleared = Set.copyOf(proven);
  }

  /** There were no files, and nothing in memory, after this state was known. */
  synchronized void wasEmpty(State after) {
    outOfMemory = after.invalid();
    cleared = after.invalid();
  }

  synchronized Set<Long> cleared() {
    return cleared;
  }
}
