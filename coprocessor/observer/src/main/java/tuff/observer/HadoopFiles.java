package tuff.observer;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.EnumSet;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.Options.CreateOpts;
import org.apache.hadoop.fs.Options.Rename;
import org.apache.hadoop.fs.Path;

/** The directory in a file system of Hadoop: a local one on one machine, HDFS in a cluster. */
final class HadoopFiles implements ObserverDirectory.Files {

  private static final String STATE = "state";
  private static final String RECORDS = "regions";

  private final Path directory;
  private final FileContext files;

  HadoopFiles(String directory, Configuration configuration) throws IOException {
    this.directory = new Path(directory);
    this.files = FileContext.getFileContext(this.directory.toUri(), configuration);
  }

  @Override
  public Optional<byte[]> readState() throws IOException {
    try (FSDataInputStream in = files.open(new Path(directory, STATE))) {
      return Optional.of(in.readAllBytes());
    } catch (FileNotFoundException absent) {
      return Optional.empty();
    }
  }

  @Override
  public void writeRecord(String name, byte[] record) throws IOException {
    Path written = new Path(directory, RECORDS + "/" + name);
    Path temporary = written.suffix(".tmp");
    EnumSet<CreateFlag> anew = EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE);
    try (FSDataOutputStream out = files.create(temporary, anew, CreateOpts.createParent())) {
      out.write(record);
    }
    files.rename(temporary, written, Rename.OVERWRITE);
  }
}
