package tuff.observer;

import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;

/** One exchange for all regions of a region server that name the same directory. */
final class SharedExchange implements AutoCloseable {

  private final Map<String, Object> shared;
  private final String name;
  private final Counted counted;

  private SharedExchange(Map<String, Object> shared, String name, Counted counted) {
    this.shared = shared;
    this.name = name;
    this.counted = counted;
  }

  /** Guarded by the lock of the class. */
  private static final class Counted {
    private final Exchange exchange;
    private int users;

    private Counted(Exchange exchange) {
      this.exchange = exchange;
    }
  }

  /**
   * The exchange that others of this region server use, or a new one.
   *
   * @param shared what HBase keeps for all regions that loaded this class
   */
  static SharedExchange open(
      Map<String, Object> shared, Arguments arguments, Configuration configuration)
      throws IOException {
    // The period is part of it, else the first table that is opened decided it for all.
    String name = arguments.directory() + " " + arguments.refreshMs();
    synchronized (SharedExchange.class) {
      Counted counted = (Counted) shared.get(name);
      if (counted == null) {
        HadoopFiles files = new HadoopFiles(arguments.directory(), configuration);
        counted = new Counted(new Exchange(files, System::currentTimeMillis));
        counted.exchange.start(arguments.refreshMs());
        shared.put(name, counted);
      }
      counted.users++;
      return new SharedExchange(shared, name, counted);
    }
  }

  Exchange exchange() {
    return counted.exchange;
  }

  @Override
  public void close() {
    synchronized (SharedExchange.class) {
      counted.users--;
      if (counted.users == 0) {
        shared.remove(name, counted);
        counted.exchange.stop();
      }
    }
  }
}
