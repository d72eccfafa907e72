package tuff.observer;

import org.apache.hadoop.conf.Configuration;

/**
 * The arguments in the table's attribute.
 *
 * @param directory the URI of the directory that the server and the regions share
 */
record Arguments(Table table, String directory, long refreshMs) {

  private static final String TABLE = "tuff.table";
  private static final String DIRECTORY = "tuff.directory";
  private static final String REFRESH_MS = "tuff.refresh_ms";
  private static final long REFRESH_MS_DEFAULT = 5_000;

  /**
   * The arguments of one table.
   *
   * @throws IllegalArgumentException one is missing or wrong.
   */
  static Arguments of(Configuration configuration) {
    String directory = required(configuration, DIRECTORY);
    Table table = Table.named(required(configuration, TABLE));
    long refreshMs = configuration.getLong(REFRESH_MS, REFRESH_MS_DEFAULT);
    if (refreshMs < 1) {
      throw new IllegalArgumentException(REFRESH_MS + " is 1 or more, not " + refreshMs);
    }
    return new Arguments(table, directory, refreshMs);
  }

  private static String required(Configuration configuration, String name) {
    String value = configuration.getTrimmed(name, "");
    if (value.isEmpty()) {
      throw new IllegalArgumentException("the argument " + name + " is missing");
    }
    return value;
  }
}
