import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.TransactionManager;
import org.apache.tephra.TxConstants;
import org.apache.tephra.distributed.TransactionService;
import org.apache.tephra.metrics.TxMetricsCollector;
import org.apache.tephra.persist.ForcedFileStorage;
import org.apache.tephra.persist.LocalFileTransactionStateStorage;
import org.apache.tephra.persist.TransactionStateStorage;
import org.apache.tephra.snapshot.SnapshotCodecProvider;
import org.apache.twill.discovery.ZKDiscoveryService;
import org.apache.twill.internal.zookeeper.InMemoryZKServer;
import org.apache.twill.zookeeper.ZKClientService;

/**
 * TephraServer shipped|forced DIRECTORY PORT: Tephra's own service with its leader election, until standard input ends.
 *
 * <p>shipped: the log goes to a local file as Tephra ships it, which never forces it to the disk. forced: the same log
 * machinery over a file whose sync does.
 */
public final class TephraServer {
  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[1]);
    InMemoryZKServer keeper = InMemoryZKServer.builder().setDataDir(new File(directory, "zk")).build();
    keeper.startAndWait();
    ZKClientService client = ZKClientService.Builder.of(keeper.getConnectionStr()).setSessionTimeout(180_000).build();
    client.startAndWait();
    Configuration conf = configuration(new File(directory, "tx"));
    conf.set(TxConstants.Service.CFG_DATA_TX_BIND_ADDRESS, "127.0.0.1");
    conf.setInt(TxConstants.Service.CFG_DATA_TX_BIND_PORT, Integer.parseInt(arguments[2]));
    TransactionService service = new TransactionService(
        conf, client, new ZKDiscoveryService(client), () -> manager(conf, arguments[0].equals("forced")));
    service.startAndWait();
    System.in.readAllBytes();
    Runtime.getRuntime().halt(0);
  }

  private static Configuration configuration(File directory) {
    directory.mkdirs();
    Configuration conf = new Configuration(false);
    conf.set(TxConstants.Manager.CFG_TX_SNAPSHOT_LOCAL_DIR, directory.getPath());
    conf.setLong(TxConstants.Manager.CFG_TX_SNAPSHOT_INTERVAL, 0); // no snapshot while somebody measures
    conf.setInt(TxConstants.Manager.CFG_TX_TIMEOUT, 600);
    return conf;
  }

  // The service starts the manager itself, and wants one that is not running yet.
  private static TransactionManager manager(Configuration conf, boolean forced) {
    TransactionStateStorage storage = forced
        ? new ForcedFileStorage(conf)
        : new LocalFileTransactionStateStorage(conf, new SnapshotCodecProvider(conf), new TxMetricsCollector());
    return new TransactionManager(conf, storage, new TxMetricsCollector());
  }
}
