package headrace.interop;

import com.couchbase.client.core.deps.io.netty.buffer.ByteBuf;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.DcpControl;
import com.couchbase.client.dcp.events.DcpFailureEvent;
import com.couchbase.client.dcp.events.StreamEndEvent;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.SeqnoAdvanced;
import com.couchbase.client.dcp.highlevel.SnapshotMarker;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import com.couchbase.client.dcp.message.StreamEndReason;
import com.couchbase.client.dcp.state.PartitionState;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Reads every change of a bucket with Couchbase's Java DCP client and prints it.
 *
 * <pre>
 * java -jar drain.jar [--count [--undecoded] [--rounds N]] [--collections] [--from FILE] [--live]
 *                     [--verbose] couchbase://127.0.0.1:11210/default
 * </pre>
 *
 * Options, lines and login are those of the Go program beside this one (../go/main.go).
 * This client cannot ask for delete times, and servers that want both send expirations as deletions.
 * Changes come from the client's listener of documents, which has key, seqno, CAS and value of each
 * at hand. {@code --undecoded} takes its data event handler instead, which hands out the received
 * buffers as they are: the least work this client can do, with everything left to the application.
 */
public final class Drain {
  private static final Duration CONNECT_TIME = Duration.ofSeconds(20);
  private static final Duration DRAIN_TIME = Duration.ofSeconds(300);
  private static final int WINDOW = 20 * 1024 * 1024;
  private static final int HEADER_SIZE = 24;
  private static final int EXTRAS_LENGTH_OFFSET = 4;
  private static final int OUTPUT_SIZE = 1 << 20;

  private URI url;
  private boolean count;
  private boolean undecoded;
  private boolean collections;
  private boolean live;
  private int rounds = 1;
  private Map<Integer, StreamOffset> starts = Map.of();

  /** Completes when everything was read, or with the reason why not. */
  private CompletableFuture<Void> done;
  private AtomicInteger open;
  // The client reads one node on one thread; the future publishes what it counted.
  private long items;
  private long bytes;
  private Goal goal;

  public static void main(String[] arguments) {
    try {
      new Drain().run(new ArrayDeque<>(List.of(arguments)));
    } catch (Exception error) {
      System.err.println("drain: " + error);
      if (error.getCause() != null) {
        System.err.println("because: " + error.getCause());
      }
      System.exit(1);
    }
    // The client's threads are not all daemons.
    System.exit(0);
  }

  private void run(Deque<String> arguments) throws Exception {
    boolean verbose = false;
    while (!arguments.isEmpty()) {
      String word = arguments.pop();
      switch (word) {
        case "--count" -> count = true;
        case "--undecoded" -> undecoded = true;
        case "--collections" -> collections = true;
        case "--live" -> live = true;
        case "--verbose" -> verbose = true;
        case "--rounds" -> rounds = Integer.parseInt(arguments.pop());
        case "--from" -> starts = readStarts(Path.of(arguments.pop()));
        default -> url = URI.create(word);
      }
    }
    if (url == null) {
      throw new IllegalArgumentException("give a connection string: couchbase://host:port/bucket");
    }
    System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", verbose ? "debug" : "error");
    if (count) {
      for (int round = 0; round < rounds; round++) {
        measure();
      }
      return;
    }
    try (PrintStream out = new PrintStream(
        new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), OUTPUT_SIZE),
        false, StandardCharsets.US_ASCII)) {
      drain(client -> client.listener(new Printer(out), FlowControlMode.AUTOMATIC));
    }
  }

  /** Where the client's events go. */
  private interface Handlers {
    void register(Client client);
  }

  private void drain(Handlers handlers) throws Exception {
    done = new CompletableFuture<>();
    goal = new Goal();
    items = 0;
    bytes = 0;
    Client.Builder builder = Client.builder()
        .connectionString(url.getScheme() + "://" + url.getAuthority()
            + (url.getQuery() == null ? "" : "?" + url.getQuery()))
        .bucket(url.getPath().replace("/", ""))
        .credentials(System.getenv("DRAIN_USER"), System.getenv("DRAIN_PASSWORD"))
        .collectionsAware(collections)
        .bootstrapTimeout(CONNECT_TIME)
        .controlParam(DcpControl.Names.ENABLE_EXPIRY_OPCODE, true)
        .flowControl(WINDOW);
    Client client = builder.build();
    try {
      handlers.register(client);
      client.connect().block(CONNECT_TIME);
      open = new AtomicInteger(client.numPartitions());
      client.initializeState(StreamFrom.BEGINNING, live ? StreamTo.INFINITY : StreamTo.NOW)
          .block(CONNECT_TIME);
      starts.forEach((vbucket, offset) -> {
        PartitionState state = PartitionState.fromOffset(offset);
        state.setEndSeqno(client.sessionState().get(vbucket).getEndSeqno());
        client.sessionState().set(vbucket, state);
      });
      client.startStreaming().block(CONNECT_TIME);
      if (live) {
        System.err.println("streaming");
        goal.set(readTargets());
      }
      done.get(DRAIN_TIME.toSeconds(), TimeUnit.SECONDS);
    } catch (ExecutionException error) {
      throw new IOException("a stream failed: " + error.getCause(), error.getCause());
    } catch (TimeoutException error) {
      throw new IOException("streams did not end in time", error);
    } finally {
      client.disconnect().block(CONNECT_TIME);
    }
  }

  private void ended(int vbucket, StreamEndReason reason) {
    if (reason != StreamEndReason.OK || live) {
      done.completeExceptionally(new IOException("stream of vbucket " + vbucket + ": " + reason));
    } else if (open.decrementAndGet() == 0) {
      done.complete(null);
    }
  }

  // -- lines ------------------------------------------------------------------------------------

  /** What both listeners do about streams that end or fail. */
  private abstract class Listener implements DatabaseChangeListener {
    @Override
    public void onRollback(Rollback rollback) {
      done.completeExceptionally(new IOException(
          "vbucket " + rollback.getVbucket() + " was rolled back to " + rollback.getSeqno()));
    }

    @Override
    public void onStreamEnd(StreamEnd end) {
      ended(end.getVbucket(), end.getReason());
    }

    @Override
    public void onFailure(StreamFailure failure) {
      done.completeExceptionally(failure.getCause());
    }
  }

  /** Prints changes; called on one thread of the client. */
  private final class Printer extends Listener {
    private final PrintStream out;

    Printer(PrintStream out) {
      this.out = out;
    }

    @Override
    public void onMutation(Mutation mutation) {
      print("mutation", mutation, mutation.getFlagsAsInt(), mutation.getExpiry());
    }

    @Override
    public void onDeletion(Deletion deletion) {
      print(deletion.isDueToExpiration() ? "expiration" : "deletion", deletion, 0, 0);
    }

    private void print(String kind, DocumentChange change, int flags, int expiry) {
      long seqno = change.getOffset().getSeqno();
      HexFormat hex = HexFormat.of();
      out.print(String.join("\t", kind, Integer.toString(change.getVbucket()),
          Long.toUnsignedString(seqno), Long.toUnsignedString(change.getCas()),
          Long.toUnsignedString(change.getRevision()), Long.toString(change.getCollection().id()),
          hex.formatHex(change.getKey().getBytes(StandardCharsets.UTF_8)),
          hex.formatHex(change.getContent()), Integer.toUnsignedString(flags),
          Integer.toUnsignedString(expiry)) + "\n");
      goal.move(change.getVbucket(), seqno);
    }

    @Override
    public void onSeqnoAdvanced(SeqnoAdvanced advanced) {
      goal.move(advanced.getVbucket(), advanced.getOffset().getSeqno());
    }
  }

  // -- counting ---------------------------------------------------------------------------------

  /** Counts changes that it has decoded. */
  private final class Counter extends Listener {
    @Override
    public void onMutation(Mutation mutation) {
      count(mutation);
    }

    @Override
    public void onDeletion(Deletion deletion) {
      count(deletion);
    }

    private void count(DocumentChange change) {
      items++;
      bytes += change.getKey().length() + change.getContent().length;
    }
  }

  private void countBuffers(Client client) {
    client.dataEventHandler((flow, event) -> {
      items++;
      bytes += documentSize(event);
      flow.ack(event);
      event.release();
    });
    client.systemEventHandler(event -> {
      if (event instanceof StreamEndEvent end) {
        ended(end.partition(), end.reason());
      } else if (event instanceof DcpFailureEvent failure) {
        done.completeExceptionally(failure.error());
      }
    });
  }

  private void measure() throws Exception {
    long cpuBefore = cpuNanos();
    long began = System.nanoTime();
    drain(client -> {
      if (undecoded) {
        countBuffers(client);
      } else {
        client.listener(new Counter(), FlowControlMode.AUTOMATIC);
      }
    });
    System.out.printf(
        "{\"items\": %d, \"bytes\": %d, \"cpu_seconds\": %.6f, \"wall_seconds\": %.6f,"
            + " \"memory_mb\": %.3f}%n",
        items, bytes, (cpuNanos() - cpuBefore) / 1e9, (System.nanoTime() - began) / 1e9,
        memoryMegabytes());
  }

  /** Bytes of key and value. */
  private static int documentSize(ByteBuf event) {
    return event.readableBytes() - HEADER_SIZE - event.getUnsignedByte(EXTRAS_LENGTH_OFFSET);
  }

  private static long cpuNanos() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  private static double memoryMegabytes() throws IOException {
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmHWM:")) {
        return Long.parseLong(line.replaceAll("\\D", "")) / 1024.0;
      }
    }
    return 0;
  }

  // -- where to start and to stop ---------------------------------------------------------------

  /** How far every vbucket has come, and when that is far enough. */
  private final class Goal {
    private final Map<Integer, Long> reached = new HashMap<>();
    private Map<Integer, Long> targets;

    synchronized void move(int vbucket, long seqno) {
      if (live) {
        reached.put(vbucket, seqno);
        check();
      }
    }

    synchronized void set(Map<Integer, Long> seqnos) {
      targets = seqnos;
      check();
    }

    private void check() {
      if (targets != null && targets.entrySet().stream().allMatch(target -> Long.compareUnsigned(
          reached.getOrDefault(target.getKey(), 0L), target.getValue()) >= 0)) {
        done.complete(null);
      }
    }
  }

  private static Map<Integer, Long> readTargets() throws IOException {
    Map<Integer, Long> targets = new HashMap<>();
    try (BufferedReader lines = new BufferedReader(
        new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
      lines.lines().map(line -> line.split(" ")).forEach(words ->
          targets.put(Integer.parseInt(words[0]), Long.parseUnsignedLong(words[1])));
    } catch (UncheckedIOException error) {
      throw error.getCause();
    }
    return targets;
  }

  private static Map<Integer, StreamOffset> readStarts(Path path) throws IOException {
    Map<Integer, StreamOffset> starts = new HashMap<>();
    for (String line : Files.readAllLines(path)) {
      String[] words = line.split(" ");
      long[] numbers = new long[words.length];
      for (int index = 0; index < words.length; index++) {
        numbers[index] = Long.parseUnsignedLong(words[index]);
      }
      starts.put((int) numbers[0], new StreamOffset(numbers[1], numbers[2],
          new SnapshotMarker(numbers[3], numbers[4]), 0));
    }
    return starts;
  }
}
