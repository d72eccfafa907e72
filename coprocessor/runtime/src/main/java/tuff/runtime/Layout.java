package tuff.runtime;

import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hbase.HBaseConfiguration;

/** The directory of one HBase, and the ports of its parts, all on 127.0.0.1. */
record Layout(Path home, int zookeeper, int master, int regionServer, int thrift, int thrift2) {

  private static final String LOOPBACK = "127.0.0.1";
  private static final int SESSION_MS = 20_000;

  /** From the arguments {@code HOME ZOOKEEPER MASTER REGION_SERVER THRIFT THRIFT2}. */
  static Layout parse(String[] words, int first) {
    int[] ports = new int[5];
    for (int at = 0; at < ports.length; at++) {
      ports[at] = Integer.parseInt(words[first + 1 + at]);
    }
    Path home = Path.of(words[first]).toAbsolutePath();
    return new Layout(home, ports[0], ports[1], ports[2], ports[3], ports[4]);
  }

  Path zookeeperHome() {
    return home.resolve("zookeeper");
  }

  /** HBase's configuration. {@code distributed}: each part has its own JVM. */
  Configuration configuration(boolean distributed) {
    Configuration conf = HBaseConfiguration.create();
    conf.setBoolean("hbase.cluster.distributed", distributed);
    conf.setClass("fs.file.impl", LocalFiles.class, FileSystem.class);
    conf.set("hbase.rootdir", "file://" + home.resolve("hbase"));
    conf.set("hbase.tmp.dir", home.resolve("tmp").toString());
    durability(conf);
    memory(conf);
    addresses(conf);
    timeouts(conf);
    return conf;
  }

  private static void durability(Configuration conf) {
    // HBase then refuses to start if its log can't be synced.
    conf.setBoolean("hbase.unsafe.stream.capability.enforce", true);
    conf.set("hbase.wal.provider", "filesystem"); // the default is made for HDFS
    conf.setLong("hbase.master.logcleaner.ttl", 60_000); // old logs and files pile up otherwise
    conf.setLong("hbase.master.hfilecleaner.ttl", 60_000);
  }

  private static void memory(Configuration conf) {
    // A region with rows in memory allocates a chunk. With the default of 2 MiB, 200 regions
    // fill the heap.
    conf.setInt("hbase.hregion.memstore.mslab.chunksize", 256 << 10);
    conf.setInt("hbase.hregion.memstore.mslab.max.allocation", 64 << 10);
  }

  private void addresses(Configuration conf) {
    conf.set("hbase.zookeeper.quorum", LOOPBACK);
    conf.setInt("hbase.zookeeper.property.clientPort", zookeeper);
    conf.set("hbase.master.hostname", "localhost");
    conf.set("hbase.unsafe.regionserver.hostname", "localhost");
    conf.set("hbase.master.ipc.address", LOOPBACK);
    conf.set("hbase.regionserver.ipc.address", LOOPBACK);
    conf.setInt("hbase.master.port", master);
    conf.setInt("hbase.regionserver.port", regionServer);
    conf.setInt("hbase.master.info.port", -1); // no web pages: they listen on all addresses
    conf.setInt("hbase.regionserver.info.port", -1);
    conf.setInt("hbase.thrift.info.port", -1);
  }

  private static void timeouts(Configuration conf) {
    conf.setInt("zookeeper.session.timeout", SESSION_MS);
    conf.setInt("zookeeper.session.timeout.localHBaseCluster", SESSION_MS);
    conf.setInt("hbase.master.start.timeout.localHBaseCluster", 120_000);
    conf.setInt("hbase.master.wait.on.regionservers.mintostart", 1);
    conf.setInt("hbase.master.wait.on.regionservers.maxtostart", 1);
    conf.setInt("hbase.regionserver.msginterval", 200);
    conf.setInt("hbase.regionserver.handler.count", 20);
    // How long the master waits for more regions to assign, and for more orders to a region server.
    // With one region server there are few; with the defaults of 150 ms a table takes a second.
    conf.setInt("hbase.assignment.dispatch.wait.msec", 5);
    conf.setInt("hbase.procedure.remote.dispatcher.delay.msec", 5);
    // For the gateways, which are clients: give up after seconds and not after HBase's 20 minutes,
    // and retry often while a region moves.
    conf.setInt("hbase.client.pause", 25);
    conf.setInt("hbase.client.retries.number", 20);
    conf.setInt("hbase.client.operation.timeout", 25_000);
    conf.setInt("hbase.client.meta.operation.timeout", 25_000);
    conf.setInt("hbase.rpc.timeout", 10_000);
    conf.setInt("hbase.thrift.server.socket.read.timeout", 600_000);
    conf.setInt("hbase.thrift.maxWorkerThreads", 200);
  }
}
