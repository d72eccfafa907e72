package tuff.observer;

import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;

/** The use of an {@link ObserverDirectory}, which all regions of a region server share. */
final class SharedDirectory implements AutoCloseable {

  private final Map<String, Object> shared;
  private final String key;
  private final Counted counted;

  private SharedDirectory(Map<String, Object> shared, String key, Counted counted) {
    this.shared = shared;
    this.key = key;
    this.counted = counted;
  }

  /** Guarded by the lock of the class. */
  private static final class Counted {
    private final ObserverDirectory directory;
    private int users;

    private Counted(ObserverDirectory directory) {
      this.directory = directory;
    }
  }

  /**
   * Use the directory that other regions use, or open it.
   *
   * @param shared HBase's map for all regions that loaded this class
   */
  static SharedDirectory open(
      Map<String, Object> shared, Arguments arguments, Configuration configuration)
      throws IOException {
    // With the period, which would otherwise be that of the table that was opened first.
    String key = arguments.directory() + " " + arguments.refreshMs();
    synchronized (SharedDirectory.class) {
      Counted counted = (Counted) shared.get(key);
      if (counted == null) {
        HadoopFiles files = new HadoopFiles(arguments.directory(), configuration);
        counted = new Counted(new ObserverDirectory(files, System::currentTimeMillis));
        counted.directory.start(arguments.refreshMs());
        shared.put(key, counted);
      }
      counted.users++;
      return new SharedDirectory(shared, key, counted);
    }
  }

  ObserverDirectory directory() {
    return counted.directory;
  }

  @Override
  public void close() {
    synchronized (SharedDirectory.class) {
      counted.users--;
      if (counted.users == 0) {
        shared.remove(key, counted);
        counted.directory.stop();
      }
    }
  }
}
