package tuff.observer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** A pointer counts as cleared only when neither a file nor memory can hold a row with it. */
final class ClearedPointersTest {

  private final ClearedPointers clearedPointers = new ClearedPointers();
  private final Object request = new Object();

  private static RetentionState state(Long... invalid) {
    return new RetentionState(1, 1, Map.of(), Set.of(), Set.of(invalid));
  }

  @Test
  void aCompactionWithoutAFlushClearsNothing() {
    clearedPointers.selected(request);
    clearedPointers.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(), clearedPointers.cleared());
  }

  @Test
  void aFlushAndThenACompactionClearAPointer() {
    clearedPointers.memoryWasEmptied(state(66L));
    clearedPointers.selected(request);
    clearedPointers.compacted(request, state(66L, 67L), Set.of());

    assertEquals(Set.of(66L), clearedPointers.cleared());
  }

  @Test
  void aFlushAfterTheSelectionOfFilesIsTooLate() {
    clearedPointers.selected(request);
    clearedPointers.memoryWasEmptied(state(66L));
    clearedPointers.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(), clearedPointers.cleared());
  }

  @Test
  void aPointerThatTheStateOfTheCompactionLacksIsNotCleared() {
    clearedPointers.memoryWasEmptied(state(66L, 67L));
    clearedPointers.selected(request);
    clearedPointers.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(66L), clearedPointers.cleared());
  }

  @Test
  void aPointerThatARowStillCarriesIsNotCleared() {
    clearedPointers.memoryWasEmptied(state(66L, 67L));
    clearedPointers.selected(request);
    clearedPointers.compacted(request, state(66L, 67L), Set.of(67L));

    assertEquals(Set.of(66L), clearedPointers.cleared());
  }

  @Test
  void aClearedPointerStaysClearedWhileItIsInvalid() {
    clearedPointers.memoryWasEmptied(state(66L));
    clearedPointers.selected(request);
    clearedPointers.compacted(request, state(66L), Set.of());
    Object next = new Object();
    clearedPointers.selected(next);
    clearedPointers.compacted(next, state(66L, 67L), Set.of());
    assertEquals(Set.of(66L), clearedPointers.cleared());
    Object last = new Object();
    clearedPointers.selected(last);
    clearedPointers.compacted(last, state(67L), Set.of());

    assertEquals(Set.of(), clearedPointers.cleared());
  }

  @Test
  void anEmptyRegionClearsAllPointers() {
    clearedPointers.wasEmpty(state(66L));

    assertEquals(Set.of(66L), clearedPointers.cleared());
  }

  @Test
  void aRequestIsRecognisedAfterItWasChanged() {
    List<String> changing = new ArrayList<>(List.of("as HBase's, its hash code is its content"));
    clearedPointers.memoryWasEmptied(state(66L));
    clearedPointers.selected(changing);
    changing.add("a priority");
    clearedPointers.compacted(changing, state(66L), Set.of());

    assertEquals(Set.of(66L), clearedPointers.cleared());
  }

  @Test
  void compactionsAreToldApart() {
    clearedPointers.selected(request);
    clearedPointers.memoryWasEmptied(state(66L));
    clearedPointers.selected(new Object());
    clearedPointers.compacted(request, state(66L), Set.of());

    assertEquals(Set.of(), clearedPointers.cleared());
  }
}
