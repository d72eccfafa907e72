package tuff.observer;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;

/**
 * A map with few entries whose keys are compared by identity and held weakly. HBase changes the
 * hash code of a compaction request after its selection, and does not execute every request.
 *
 * <p>Any thread may call; the object's lock guards the entries.
 */
final class WeakIdentityMap<V> {

  private final List<Entry<V>> entries = new ArrayList<>();

  private record Entry<V>(WeakReference<Object> key, V value) {}

  /** Keep a value until it is taken, or its key is collected as garbage. */
  synchronized void put(Object key, V value) {
    entries.removeIf(entry -> entry.key().get() == null);
    entries.add(new Entry<>(new WeakReference<>(key), value));
  }

  /** Remove the key, and return the value that was put last. */
  synchronized Optional<V> take(Object key) {
    Optional<V> found = Optional.empty();
    for (Iterator<Entry<V>> each = entries.iterator(); each.hasNext(); ) {
      Entry<V> entry = each.next();
      if (entry.key().get() == key) {
        found = Optional.of(entry.value());
        each.remove();
      }
    }
    return found;
  }
}
