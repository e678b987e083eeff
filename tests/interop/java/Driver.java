import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import net.snowflake.ingest.streaming.DropChannelRequest;
import net.snowflake.ingest.streaming.InsertValidationResponse;
import net.snowflake.ingest.streaming.OpenChannelRequest;
import net.snowflake.ingest.streaming.SnowflakeStreamingIngestChannel;
import net.snowflake.ingest.streaming.SnowflakeStreamingIngestClient;
import net.snowflake.ingest.streaming.SnowflakeStreamingIngestClientFactory;
import net.snowflake.ingest.utils.SFException;

/**
 * Drives the official client: a command as JSON on each line of standard input, its outcome on
 * standard output, {"ok": …} or {"error": {"class", "code", "message"}}.
 */
final class Driver {
  private final Map<String, SnowflakeStreamingIngestClient> clients = new HashMap<>();
  private final Map<String, SnowflakeStreamingIngestChannel> channels = new HashMap<>();

  public static void main(String[] arguments) throws IOException {
    // Libraries that print must not break into the conversation.
    PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
    System.setOut(System.err);
    Driver driver = new Driver();
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        answer.put("ok", driver.carryOut((Map<?, ?>) Json.parse(line)));
      } catch (Throwable thrown) {
        answer.put("error", described(thrown));
      }
      out.println(Json.write(answer));
    }
    System.exit(0);
  }

  private static Map<String, Object> described(Throwable thrown) {
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("class", thrown.getClass().getName());
    found.put("code", thrown instanceof SFException ? ((SFException) thrown).getVendorCode() : null);
    found.put("message", thrown.getMessage());
    Throwable cause = thrown.getCause();
    found.put("cause", cause == null ? null : String.valueOf(cause.getMessage()));
    return found;
  }

  private Object carryOut(Map<?, ?> command) throws Exception {
    switch (text(command, "do")) {
      case "client":
        return client(command);
      case "open":
        return open(command);
      case "insert":
        return insert(command);
      case "token":
        return channel(command).getLatestCommittedOffsetToken();
      case "wait":
        return waited(command);
      case "valid":
        return channel(command).isValid();
      case "close":
        return closed(command);
      case "drop":
        return dropped(command);
      case "close client":
        clients.get(text(command, "client")).close();
        return true;
      default:
        throw new IllegalArgumentException("no such command");
    }
  }

  private Object client(Map<?, ?> command) {
    Properties properties = new Properties();
    properties.putAll((Map<?, ?>) command.get("properties"));
    Map<String, Object> overrides = new HashMap<>();
    ((Map<?, ?>) command.get("parameters")).forEach((k, v) -> overrides.put((String) k, v));
    String name = text(command, "client");
    SnowflakeStreamingIngestClient client =
        SnowflakeStreamingIngestClientFactory.builder(name)
            .setProperties(properties)
            .setParameterOverrides(overrides)
            .build();
    clients.put(name, client);
    return client.getName();
  }

  private Object open(Map<?, ?> command) {
    OpenChannelRequest.OpenChannelRequestBuilder builder =
        OpenChannelRequest.builder(text(command, "name"))
            .setDBName(text(command, "database"))
            .setSchemaName(text(command, "schema"))
            .setTableName(text(command, "table"))
            .setOnErrorOption(
                OpenChannelRequest.OnErrorOption.valueOf(text(command, "on_error")));
    if (command.get("zone") != null) {
      builder.setDefaultTimezone(ZoneId.of(text(command, "zone")));
    }
    if (command.containsKey("offset_token")) {
      builder.setOffsetToken((String) command.get("offset_token"));
    }
    SnowflakeStreamingIngestChannel channel =
        clients.get(text(command, "client")).openChannel(builder.build());
    channels.put(text(command, "channel"), channel);
    return channel.getFullyQualifiedName();
  }

  private Object insert(Map<?, ?> command) {
    List<Map<String, Object>> rows = new ArrayList<>();
    for (Object given : (List<?>) command.get("rows")) {
      Map<String, Object> row = new LinkedHashMap<>();
      ((Map<?, ?>) given).forEach((name, value) -> row.put((String) name, Values.of(value)));
      rows.add(row);
    }
    InsertValidationResponse response =
        channel(command)
            .insertRows(rows, (String) command.get("start"), (String) command.get("token"));
    List<Object> errors = new ArrayList<>();
    for (InsertValidationResponse.InsertError error : response.getInsertErrors()) {
      Map<String, Object> found = described(error.getException());
      found.put("row", error.getRowIndex());
      errors.add(found);
    }
    return errors;
  }

  /** Wait until a token is committed; the last one seen otherwise. */
  private Object waited(Map<?, ?> command) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos((Long) command.get("seconds"));
    String token = null;
    while (System.nanoTime() < end) {
      token = channel(command).getLatestCommittedOffsetToken();
      if (Objects.equals(token, command.get("token"))) {
        break;
      }
      Thread.sleep(50);
    }
    return token;
  }

  private Object closed(Map<?, ?> command) throws Exception {
    SnowflakeStreamingIngestChannel channel = channel(command);
    boolean drop = Boolean.TRUE.equals(command.get("drop"));
    (drop ? channel.close(true) : channel.close()).get(90, TimeUnit.SECONDS);
    return true;
  }

  private Object dropped(Map<?, ?> command) {
    clients
        .get(text(command, "client"))
        .dropChannel(
            DropChannelRequest.builder(text(command, "name"))
                .setDBName(text(command, "database"))
                .setSchemaName(text(command, "schema"))
                .setTableName(text(command, "table"))
                .build());
    return true;
  }

  private SnowflakeStreamingIngestChannel channel(Map<?, ?> command) {
    return channels.get(text(command, "channel"));
  }

  private static String text(Map<?, ?> command, String key) {
    return (String) Objects.requireNonNull(command.get(key), key);
  }
}
