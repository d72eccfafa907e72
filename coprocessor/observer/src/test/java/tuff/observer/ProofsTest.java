package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** A pointer counts as cleared only when neither a file nor memory can hold a row with it. */
final class ProofsTest {

  private final Proofs proofs = new Proofs();
  private final Object request = new Object();

  private static State state(Long... invalid) {
    return new State(1, 1, Map.of(), Set.of(), Set.of(invalid));
  }

  @Test
  void aCompactionProvesNothingWhileMemoryMayHoldRows() {
    proofs.selected(request);
    proofs.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(), proofs.cleared());
  }

  @Test
  void aCompactionBehindAFlushThatKnewThePointerClearsIt() {
    proofs.memoryWasEmptied(state(66L));
    proofs.selected(request);
    proofs.compacted(request, state(66L, 67L), Set.of());

    assertEquals(Set.of(66L), proofs.cleared());
  }

  @Test
  void aFlushBehindTheChoiceOfFilesComesTooLate() {
    proofs.selected(request);
    proofs.memoryWasEmptied(state(66L));
    proofs.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(), proofs.cleared());
  }

  @Test
  void aPointerThatTheCompactionDidNotKnowIsNotCleared() {
    proofs.memoryWasEmptied(state(66L, 67L));
    proofs.selected(request);
    proofs.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(66L), proofs.cleared());
  }

  @Test
  void aPointerThatARowWasLeftWithIsNotCleared() {
    proofs.memoryWasEmptied(state(66L, 67L));
    proofs.selected(request);
    proofs.compacted(request, state(66L, 67L), Set.of(67L));

    assertEquals(Set.of(66L), proofs.cleared());
  }

  @Test
  void whatIsClearedStaysSoUntilItIsOffTheList() {
    proofs.memoryWasEmptied(state(66L));
    proofs.selected(request);
    proofs.compacted(request, state(66L), Set.of());
    Object next = new Object();
    proofs.selected(next);
    proofs.compacted(next, state(66L, 67L), Set.of());
    assertEquals(Set.of(66L), proofs.cleared());
    Object last = new Object();
    proofs.selected(last);
    proofs.compacted(last, state(67L), Set.of());

    assertEquals(Set.of(), proofs.cleared());
  }

  @Test
  void aRegionWithoutAnythingHasNoRowToClear() {
    proofs.wasEmpty(state(66L));

    assertEquals(Set.of(66L), proofs.cleared());
  }

  @Test
  void aRequestThatIsChangedBehindTheChoiceIsStillTheSame() {
    List<String> changing = new ArrayList<>(List.of("as HBase's, its hash code is its content"));
    proofs.memoryWasEmptied(state(66L));
    proofs.selected(changing);
    changing.add("a priority");
    proofs.compacted(changing, state(66L), Set.of());

    assertEquals(Set.of(66L), proofs.cleared());
  }

  @Test
  void oneCompactionIsNotTakenForAnother() {
    proofs.selected(request);
    proofs.memoryWasEmptied(state(66L));
    proofs.selected(new Object());
    proofs.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(), proofs.cleared());
  }
}
