package tuff.observer;

import java.io.IOException;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import org.apache.hadoop.hbase.CoprocessorEnvironment;
import org.apache.hadoop.hbase.coprocessor.ObserverContext;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessor;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.coprocessor.RegionObserver;
import org.apache.hadoop.hbase.regionserver.FlushLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScanType;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.StoreFile;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionRequest;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Removes expired rows in flushes and compactions of one region, when HBase writes files anyway.
 *
 * <p>An attribute of the table loads it, with arguments:
 *
 * <pre>
 * JAR|tuff.observer.RetentionObserver|1001|tuff.table=message,tuff.directory=file:///srv/tuff/observers
 * </pre>
 *
 * {@code tuff.table} is {@code message} or {@code payload}; {@code tuff.refresh_ms} is the time
 * between two reads of the state, 5000 by default. With wrong arguments the region is served, and
 * all rows are kept. No hook throws an exception of its own.
 */
public final class RetentionObserver implements RegionCoprocessor, RegionObserver {

  private static final Logger LOG = LoggerFactory.getLogger(RetentionObserver.class);

  private volatile Region region; // null: keep all rows

  private interface Work {
    void run() throws IOException;
  }

  @Override
  public Optional<RegionObserver> getRegionObserver() {
    return Optional.of(this);
  }

  @Override
  @SuppressWarnings("rawtypes") // as the interface has it
  public void start(CoprocessorEnvironment environment) {
    quietly(
        () -> {
          if (environment instanceof RegionCoprocessorEnvironment ours) {
            region = Region.open(ours);
          }
        });
  }

  @Override
  @SuppressWarnings("rawtypes") // as the interface has it
  public void stop(CoprocessorEnvironment environment) {
    inRegion(Region::close);
  }

  @Override
  public void preFlush(
      ObserverContext<RegionCoprocessorEnvironment> context, FlushLifeCycleTracker tracker) {
    inRegion(Region::flushBegins);
  }

  @Override
  public InternalScanner preFlush(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      InternalScanner scanner,
      FlushLifeCycleTracker tracker) {
    return wrapped(scanner, found -> found.flushed(scanner));
  }

  @Override
  public void postFlush(
      ObserverContext<RegionCoprocessorEnvironment> context, FlushLifeCycleTracker tracker) {
    inRegion(Region::flushEnds);
  }

  @Override
  public void preCompactSelection(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      List<? extends StoreFile> candidates,
      CompactionLifeCycleTracker tracker) {
    inRegion(Region::selectionBegins);
  }

  @Override
  public void postCompactSelection(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      List<? extends StoreFile> selected,
      CompactionLifeCycleTracker tracker,
      CompactionRequest request) {
    inRegion(found -> found.selected(request));
  }

  @Override
  public InternalScanner preCompact(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      InternalScanner scanner,
      ScanType type,
      CompactionLifeCycleTracker tracker,
      CompactionRequest request) {
    return wrapped(scanner, found -> found.compacted(scanner, request));
  }

  @Override
  public void postCompact(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      StoreFile result,
      CompactionLifeCycleTracker tracker,
      CompactionRequest request) {
    inRegion(found -> found.compactionEnds(request));
  }

  private void inRegion(Consumer<Region> work) {
    Region found = region;
    if (found != null) {
      quietly(() -> work.accept(found));
    }
  }

  private static void quietly(Work work) {
    try {
      work.run();
    } catch (IOException | RuntimeException | LinkageError error) {
      LOG.error("retention: a hook failed", error);
    }
  }

  private InternalScanner wrapped(
      InternalScanner scanner, Function<Region, InternalScanner> wrap) {
    Region found = region;
    if (found == null) {
      return scanner;
    }
    try {
      return wrap.apply(found);
    } catch (RuntimeException | LinkageError error) {
      LOG.error("retention: all rows of this file are kept", error);
      return scanner;
    }
  }
}
