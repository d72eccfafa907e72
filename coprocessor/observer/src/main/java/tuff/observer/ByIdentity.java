package tuff.observer;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;

/**
 * Values for objects that are told apart by what they are, and not by what they say: HBase changes
 * the hash code of a compaction request after it was announced. A value goes with its object, since
 * not every compaction that was announced is carried out.
 *
 * <p>Any thread may call it; its lock guards the list, which has a handful of entries.
 */
final class ByIdentity<V> {

  private final List<Entry<V>> entries = new ArrayList<>();

  private record Entry<V>(WeakReference<Object> object, V value) {}

  /** Keeps a value until it is taken, or nobody has the object any more. */
  synchronized void put(Object object, V value) {
    entries.removeIf(entry -> entry.object().get() == null);
    entries.add(new Entry<>(new WeakReference<>(object), value));
  }

  /** The value that was kept for the object last; it is kept no longer. */
  synchronized Optional<V> take(Object object) {
    Optional<V> found = Optional.empty();
    for (Iterator<Entry<V>> each = entries.iterator(); each.hasNext(); ) {
      Entry<V> entry = each.next();
      if (entry.object().get() == object) {
        found = Optional.of(entry.value());
        each.remove();
      }
    }
    return found;
  }
}
