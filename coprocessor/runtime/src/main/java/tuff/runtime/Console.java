package tuff.runtime;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.RegionMetrics;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.CompactionState;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;

/**
 * Commands from standard input, one per line, that the gateways don't offer. The answer is
 * {@code OK ms} or {@code ERR text}, after any lines of data.
 *
 * <pre>
 * flush TABLE
 * major TABLE           a major compaction, to its end
 * split TABLE ROW       ROW in hex
 * raw TABLE             every cell and delete marker: CELL row qualifier timestamp type value
 * quit
 * </pre>
 */
final class Console {

  private static final long POLL_MS = 100;
  private static final long COMPACTED_WITHIN_MS = 120_000;
  private static final HexFormat HEX = HexFormat.of();

  private final Configuration conf;

  Console(Configuration conf) {
    this.conf = conf;
  }

  /** Execute commands until {@code quit}, or the end of the input. */
  void run() throws IOException {
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    String line = lines.readLine();
    while (line != null && !line.equals("quit")) {
      answer(line.strip().split(" "));
      line = lines.readLine();
    }
  }

  private void answer(String[] words) {
    long startedMs = System.currentTimeMillis();
    try (Connection connection = ConnectionFactory.createConnection(conf);
        Admin admin = connection.getAdmin()) {
      execute(words, connection, admin);
      System.out.println("OK " + (System.currentTimeMillis() - startedMs));
    } catch (IOException | RuntimeException | InterruptedException error) {
      System.out.println("ERR " + String.valueOf(error).replace('\n', ' '));
    }
  }

  private static void execute(String[] words, Connection connection, Admin admin)
      throws IOException, InterruptedException {
    TableName table = TableName.valueOf(words[1]);
    switch (words[0]) {
      case "flush" -> admin.flush(table);
      case "major" -> compact(admin, table);
      case "split" -> admin.split(table, HEX.parseHex(words[2]));
      case "raw" -> printCells(connection, table);
      default -> throw new IllegalArgumentException("no command: " + words[0]);
    }
  }

  /** Major-compact. HBase begins some time after the request, so an idle table may not be done. */
  private static void compact(Admin admin, TableName table)
      throws IOException, InterruptedException {
    long requestedMs = System.currentTimeMillis();
    admin.majorCompact(table);
    while (!isCompacted(admin, table, requestedMs)) {
      if (System.currentTimeMillis() > requestedMs + COMPACTED_WITHIN_MS) {
        throw new IOException(
            table + " was not compacted within " + COMPACTED_WITHIN_MS / 1000 + " s");
      }
      Thread.sleep(POLL_MS);
    }
  }

  /** Whether no compaction runs, and every region was major-compacted later than that. */
  private static boolean isCompacted(Admin admin, TableName table, long requestedMs)
      throws IOException {
    if (admin.getCompactionState(table) != CompactionState.NONE) {
      return false;
    }
    for (ServerName server : admin.getRegionServers()) {
      for (RegionMetrics region : admin.getRegionMetrics(server, table)) {
        if (region.getStoreFileCount() > 0
            && region.getLastMajorCompactionTimestamp() < requestedMs) {
          return false;
        }
      }
    }
    return true;
  }

  private static void printCells(Connection connection, TableName table) throws IOException {
    Scan everything = new Scan().setRaw(true).readAllVersions();
    try (ResultScanner rows = connection.getTable(table).getScanner(everything)) {
      for (Result row : rows) {
        for (Cell cell : row.rawCells()) {
          System.out.println(
              String.join(
                  " ",
                  "CELL",
                  HEX.formatHex(CellUtil.cloneRow(cell)),
                  HEX.formatHex(CellUtil.cloneQualifier(cell)) + ".",
                  String.valueOf(cell.getTimestamp()),
                  cell.getType().name(),
                  HEX.formatHex(CellUtil.cloneValue(cell)) + "."));
        }
      }
    }
  }
}
