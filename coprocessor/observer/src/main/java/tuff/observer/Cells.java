package tuff.observer;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ExtendedCell;
import org.apache.hadoop.hbase.RawCell;
import org.apache.hadoop.hbase.RawCellBuilder;
import org.apache.hadoop.hbase.Tag;

/**
 * The cells of a stored row in HBase.
 *
 * <pre>
 * row   := salt(1) key without its tag
 * cells := d:p the payload, absent from a reference row    d:t the value up to the payload
 * </pre>
 */
final class Cells {

  private static final byte[] HEAD = {'t'};
  private static final byte[] PAYLOAD = {'p'};
  private static final int SALT_SIZE = 1;

  private final Table table;
  private final Supplier<RawCellBuilder> builders;

  Cells(Table table, Supplier<RawCellBuilder> builders) {
    this.table = table;
    this.builders = builders;
  }

  static boolean isHead(Cell cell) {
    return cell.getType() == Cell.Type.Put && CellUtil.matchingQualifier(cell, HEAD);
  }

  static boolean isPayload(Cell cell) {
    return cell.getType() == Cell.Type.Put && CellUtil.matchingQualifier(cell, PAYLOAD);
  }

  /**
   * The row with these cells.
   *
   * @param payload null if the row has none
   */
  StoredRow row(Cell head, Cell payload) {
    byte[] key = new byte[1 + Math.max(0, head.getRowLength() - SALT_SIZE)];
    key[0] = table.tag;
    System.arraycopy(
        head.getRowArray(), head.getRowOffset() + SALT_SIZE, key, 1, key.length - 1);
    int payloadSize = payload == null ? 0 : payload.getValueLength();
    byte[] value = new byte[head.getValueLength() + payloadSize];
    CellUtil.copyValueTo(head, value, 0);
    if (payload != null) {
      CellUtil.copyValueTo(payload, value, head.getValueLength());
    }
    return new StoredRow(table, key, value);
  }

  /** The head cell with the beginning of this value, to replace the present one. */
  Cell head(Cell before, byte[] value) throws IOException {
    return made(before, value, before.getValueLength());
  }

  /** The same cell in its own memory. */
  Cell copy(Cell cell) throws IOException {
    return made(cell, CellUtil.cloneValue(cell), cell.getValueLength());
  }

  private Cell made(Cell from, byte[] value, int valueSize) throws IOException {
    RawCellBuilder builder = builders.get();
    builder
        .clear()
        .setRow(from.getRowArray(), from.getRowOffset(), from.getRowLength())
        .setFamily(from.getFamilyArray(), from.getFamilyOffset(), from.getFamilyLength())
        .setQualifier(
            from.getQualifierArray(), from.getQualifierOffset(), from.getQualifierLength())
        .setTimestamp(from.getTimestamp())
        .setType(from.getType())
        .setValue(value, 0, valueSize);
    List<Tag> tags = new ArrayList<>();
    ((RawCell) from).getTags().forEachRemaining(tags::add);
    if (!tags.isEmpty()) {
      builder.setTags(tags);
    }
    Cell made = builder.build();
    // A scan that began before the row was written must see either both of its cells or none.
    ((ExtendedCell) made).setSequenceId(((ExtendedCell) from).getSequenceId());
    return made;
  }
}
