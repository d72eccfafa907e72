package org.apache.tephra.persist;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.StandardOpenOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.TxConstants;
import org.apache.tephra.metrics.TxMetricsCollector;
import org.apache.tephra.snapshot.SnapshotCodecProvider;

/**
 * Tephra's own log over a file that is really forced to the disk at each sync. Tephra ships no such storage for local
 * files; this one sits in its package since the constructor of its log is visible there only. It can't be read back.
 */
public final class ForcedFileStorage extends LocalFileTransactionStateStorage {
  private final Configuration conf;

  public ForcedFileStorage(Configuration conf) {
    super(conf, new SnapshotCodecProvider(conf), new TxMetricsCollector());
    this.conf = conf;
  }

  @Override
  public TransactionLog createLog(long timestamp) throws IOException {
    File file = new File(conf.get(TxConstants.Manager.CFG_TX_SNAPSHOT_LOCAL_DIR), "txlog." + timestamp);
    return new ForcedLog(file, timestamp, conf);
  }

  private static final class ForcedLog extends AbstractTransactionLog {
    private final File file;

    ForcedLog(File file, long timestamp, Configuration conf) {
      super(timestamp, new TxMetricsCollector(), conf);
      this.file = file;
    }

    @Override
    public String getName() {
      return file.getPath();
    }

    @Override
    public TransactionLogReader getReader() {
      throw new UnsupportedOperationException("a log that was only measured is not read");
    }

    @Override
    protected TransactionLogWriter createWriter() throws IOException {
      return new ForcedWriter(FileChannel.open(file.toPath(), StandardOpenOption.CREATE, StandardOpenOption.WRITE));
    }
  }

  private static final class ForcedWriter implements TransactionLogWriter {
    private final FileChannel channel;
    private final ByteArrayOutputStream pending = new ByteArrayOutputStream(1 << 16);
    private final DataOutputStream out = new DataOutputStream(pending);

    ForcedWriter(FileChannel channel) {
      this.channel = channel;
    }

    @Override
    public void append(AbstractTransactionLog.Entry entry) throws IOException {
      entry.write(out);
    }

    @Override
    public void commitMarker(int count) {}

    @Override
    public long getPosition() throws IOException {
      return channel.position() + pending.size();
    }

    @Override
    public void sync() throws IOException {
      ByteBuffer bytes = ByteBuffer.wrap(pending.toByteArray());
      pending.reset();
      while (bytes.hasRemaining()) {
        channel.write(bytes);
      }
      channel.force(false);
    }

    @Override
    public void close() throws IOException {
      channel.close();
    }
  }
}
