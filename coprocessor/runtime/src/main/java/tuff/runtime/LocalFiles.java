package tuff.runtime;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * The local file system. Hadoop's own starts the program chmod for each file and directory that it
 * creates, since its native library is not there; that was half the work of creating a table.
 */
public final class LocalFiles extends LocalFileSystem {

  public LocalFiles() {
    super(new Raw());
  }

  private static final class Raw extends RawLocalFileSystem {

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      Files.setPosixFilePermissions(pathToFile(path).toPath(), posix(permission.toShort()));
    }

    /** The bits and the constants have one order: from the owner's reading to others' executing. */
    private static Set<PosixFilePermission> posix(int bits) {
      PosixFilePermission[] all = PosixFilePermission.values();
      Set<PosixFilePermission> set = EnumSet.noneOf(PosixFilePermission.class);
      for (int at = 0; at < all.length; at++) {
        if ((bits >> (all.length - 1 - at) & 1) == 1) {
          set.add(all[at]);
        }
      }
      return set;
    }
  }
}
