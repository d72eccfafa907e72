package tuff.runtime;

import java.io.IOException;
import java.net.BindException;
import java.net.Socket;
import java.util.concurrent.CountDownLatch;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.LocalHBaseCluster;
import org.apache.hadoop.hbase.master.HMaster;
import org.apache.hadoop.hbase.regionserver.HRegionServer;
import org.apache.hadoop.hbase.zookeeper.MiniZooKeeperCluster;
import org.apache.hadoop.util.Tool;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;

/**
 * A real HBase on one machine.
 *
 * <pre>LocalHBase PART HOME ZOOKEEPER MASTER REGION_SERVER THRIFT THRIFT2</pre>
 *
 * PART is {@code all} (everything in this JVM) or one of {@code zookeeper master region-server
 * thrift thrift2}. It prints {@code READY ms} once it can be used, and then executes the commands
 * of {@link Console}. It ends with its standard input, so it never outlives the process that
 * started it.
 */
public final class LocalHBase {

  private static final long POLL_MS = 20;

  private LocalHBase() {}

  public static void main(String[] words) throws Exception {
    long startedMs = System.currentTimeMillis();
    String part = words[0];
    Layout layout = Layout.parse(words, 1);
    Configuration conf = layout.configuration(!part.equals("all"));
    Runnable stop = start(part, layout, conf);
    System.out.println("READY " + (System.currentTimeMillis() - startedMs));
    new Console(conf).run();
    stop.run();
    // HBase leaves non-daemon threads behind.
    Runtime.getRuntime().halt(0);
  }

  private static Runnable start(String part, Layout layout, Configuration conf) throws Exception {
    switch (part) {
      case "all":
        return startAll(layout, conf);
      case "zookeeper":
        return stopping(startZooKeeper(layout, conf));
      case "master":
        HMaster master = HMaster.constructMaster(HMaster.class, conf);
        master.start();
        return () -> master.stop("the input ended");
      case "region-server":
        HRegionServer server = new HRegionServer(conf);
        server.start();
        return () -> stopAndJoin(server);
      case "thrift":
        startThrift(layout, conf);
        return () -> {};
      case "thrift2":
        startThrift2(layout, conf);
        return () -> {};
      default:
        throw new IllegalArgumentException("no part of HBase: " + part);
    }
  }

  private static Runnable startAll(Layout layout, Configuration conf) throws Exception {
    MiniZooKeeperCluster zookeeper = startZooKeeper(layout, conf);
    removeStaleSessions(layout.zookeeper());
    LocalHBaseCluster cluster = new LocalHBaseCluster(conf, 1, 1);
    cluster.startup();
    while (cluster.getActiveMaster() == null || !cluster.getActiveMaster().isInitialized()) {
      Thread.sleep(POLL_MS);
    }
    startThrift(layout, conf);
    startThrift2(layout, conf);
    Runnable rest = stopping(zookeeper);
    return () -> {
      cluster.shutdown();
      rest.run();
    };
  }

  private static MiniZooKeeperCluster startZooKeeper(Layout layout, Configuration conf)
      throws Exception {
    MiniZooKeeperCluster zookeeper = new MiniZooKeeperCluster(conf);
    zookeeper.setDefaultClientPort(layout.zookeeper());
    zookeeper.startup(layout.zookeeperHome().toFile());
    if (zookeeper.getClientPort() != layout.zookeeper()) {
      throw new BindException("port " + layout.zookeeper() + " is in use"); // it took the next one
    }
    return zookeeper;
  }

  /** Without this, no master becomes active after kill -9 until the old sessions expire. */
  private static void removeStaleSessions(int port)
      throws IOException, InterruptedException, KeeperException {
    CountDownLatch connected = new CountDownLatch(1);
    Watcher watcher =
        event -> {
          if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
            connected.countDown();
          }
        };
    try (ZooKeeper client = new ZooKeeper("127.0.0.1:" + port, 30_000, watcher)) {
      connected.await();
      if (client.exists("/hbase/master", false) != null) {
        client.delete("/hbase/master", -1);
      }
      if (client.exists("/hbase/rs", false) != null) {
        for (String server : client.getChildren("/hbase/rs", false)) {
          client.delete("/hbase/rs/" + server, -1);
        }
      }
    }
  }

  private static void startThrift(Layout layout, Configuration conf) throws Exception {
    Configuration own = new Configuration(conf);
    startGateway(new org.apache.hadoop.hbase.thrift.ThriftServer(own), layout.thrift());
  }

  private static void startThrift2(Layout layout, Configuration conf) throws Exception {
    Configuration own = new Configuration(conf);
    startGateway(new org.apache.hadoop.hbase.thrift2.ThriftServer(own), layout.thrift2());
  }

  private static void startGateway(Tool gateway, int port) throws InterruptedException {
    Thread thread = new Thread(() -> serve(gateway, port), "gateway-" + port);
    thread.setDaemon(true);
    thread.start();
    while (!listens(port)) {
      Thread.sleep(POLL_MS);
    }
  }

  private static void serve(Tool gateway, int port) {
    try {
      gateway.run(new String[] {"--bind", "127.0.0.1", "-p", String.valueOf(port)});
    } catch (Exception error) {
      error.printStackTrace();
      Runtime.getRuntime().halt(3);
    }
  }

  private static boolean listens(int port) {
    try (Socket socket = new Socket("127.0.0.1", port)) {
      return socket.isConnected();
    } catch (IOException error) {
      return false;
    }
  }

  private static Runnable stopping(MiniZooKeeperCluster zookeeper) {
    return () -> {
      try {
        zookeeper.shutdown();
      } catch (IOException error) {
        error.printStackTrace();
      }
    };
  }

  private static void stopAndJoin(HRegionServer server) {
    server.stop("the input ended");
    try {
      server.join();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
