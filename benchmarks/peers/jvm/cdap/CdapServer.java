import com.google.common.util.concurrent.Service;
import com.google.inject.AbstractModule;
import com.google.inject.Guice;
import com.google.inject.Injector;
import io.cdap.cdap.api.metrics.MetricsCollectionService;
import io.cdap.cdap.common.conf.CConfiguration;
import io.cdap.cdap.common.guice.ConfigModule;
import io.cdap.cdap.common.guice.InMemoryDiscoveryModule;
import io.cdap.cdap.common.metrics.NoOpMetricsCollectionService;
import io.cdap.cdap.messaging.MessagingService;
import io.cdap.cdap.messaging.guice.MessagingServerRuntimeModule;
import io.cdap.cdap.messaging.server.MessagingHttpService;
import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.TransactionManager;
import org.apache.tephra.TxConstants;
import org.apache.tephra.distributed.TransactionServiceThriftHandler;
import org.apache.tephra.distributed.thrift.TTransactionServer;
import org.apache.tephra.metrics.TxMetricsCollector;
import org.apache.tephra.persist.LocalFileTransactionStateStorage;
import org.apache.tephra.rpc.ThriftRPCServer;
import org.apache.tephra.snapshot.SnapshotCodecProvider;
import org.apache.tephra.txprune.TransactionPruningService;

/**
 * CdapServer DIRECTORY HTTP_PORT THRIFT_PORT: CDAP's messaging over LevelDB, and Tephra's transactions beside it as a
 * CDAP installation has them, until standard input ends.
 */
public final class CdapServer {
  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[0]);
    startTransactions(new File(directory, "tx"), Integer.parseInt(arguments[2]));
    startMessaging(directory, Integer.parseInt(arguments[1]));
    System.in.readAllBytes();
    Runtime.getRuntime().halt(0);
  }

  private static void startMessaging(File directory, int port) {
    CConfiguration conf = CConfiguration.create();
    conf.set("local.data.dir", new File(directory, "data").getPath());
    conf.set("messaging.local.data.dir", new File(directory, "messaging").getPath());
    conf.set("messaging.system.topics", "");
    conf.set("messaging.http.server.bind.address", "127.0.0.1");
    conf.set("messaging.http.server.bind.port", Integer.toString(port));
    new File(directory, "data").mkdirs();
    Injector injector = Guice.createInjector(
        new ConfigModule(conf),
        new InMemoryDiscoveryModule(),
        new MessagingServerRuntimeModule().getStandaloneModules(),
        new AbstractModule() {
          @Override
          protected void configure() {
            bind(MetricsCollectionService.class).to(NoOpMetricsCollectionService.class);
          }
        });
    MessagingService service = injector.getInstance(MessagingService.class);
    if (service instanceof Service) {
      ((Service) service).startAndWait();
    }
    injector.getInstance(MessagingHttpService.class).startAndWait();
  }

  private static void startTransactions(File directory, int port) throws Exception {
    directory.mkdirs();
    Configuration conf = new Configuration(false);
    conf.set(TxConstants.Manager.CFG_TX_SNAPSHOT_LOCAL_DIR, directory.getPath());
    conf.setLong(TxConstants.Manager.CFG_TX_SNAPSHOT_INTERVAL, 0); // no snapshot while somebody measures
    TxMetricsCollector metrics = new TxMetricsCollector();
    TransactionManager manager = new TransactionManager(
        conf, new LocalFileTransactionStateStorage(conf, new SnapshotCodecProvider(conf), metrics), metrics);
    manager.startAndWait();
    ThriftRPCServer.builder(TTransactionServer.class)
        .setHost("127.0.0.1")
        .setPort(port)
        .setIOThreads(2) // CDAP's own defaults
        .setWorkerThreads(20)
        .setMaxReadBufferBytes(16 << 20)
        .build(new TransactionServiceThriftHandler(manager, new TransactionPruningService(conf, manager)))
        .startAndWait();
  }
}
