import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much JSON as a conversation over pipes needs; whole numbers are Long, others Double. */
final class Json {
  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  static Object parse(String text) {
    Json parser = new Json(text);
    Object value = parser.value();
    parser.blanks();
    if (parser.at != text.length()) {
      throw parser.broken();
    }
    return value;
  }

  static String write(Object value) {
    StringBuilder out = new StringBuilder();
    write(value, out);
    return out.toString();
  }

  private static void write(Object value, StringBuilder out) {
    if (value == null || value instanceof Number || value instanceof Boolean) {
      out.append(value);
    } else if (value instanceof Map) {
      String comma = "{";
      for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
        out.append(comma);
        quote(String.valueOf(entry.getKey()), out);
        out.append(':');
        write(entry.getValue(), out);
        comma = ",";
      }
      out.append(comma.equals("{") ? "{}" : "}");
    } else if (value instanceof List) {
      String comma = "[";
      for (Object each : (List<?>) value) {
        out.append(comma);
        write(each, out);
        comma = ",";
      }
      out.append(comma.equals("[") ? "[]" : "]");
    } else {
      quote(value.toString(), out);
    }
  }

  private static void quote(String text, StringBuilder out) {
    out.append('"');
    for (char each : text.toCharArray()) {
      if (each == '"' || each == '\\') {
        out.append('\\').append(each);
      } else if (each < ' ' || each > '~') {
        out.append(String.format("\\u%04x", (int) each));
      } else {
        out.append(each);
      }
    }
    out.append('"');
  }

  private Object value() {
    blanks();
    switch (text.charAt(at)) {
      case '{':
        return object();
      case '[':
        return array();
      case '"':
        return string();
      default:
        return word();
    }
  }

  private Map<String, Object> object() {
    Map<String, Object> found = new LinkedHashMap<>();
    at++;
    while (!ends('}')) {
      blanks();
      String key = string();
      blanks();
      at++; // the colon
      found.put(key, value());
    }
    return found;
  }

  private List<Object> array() {
    List<Object> found = new ArrayList<>();
    at++;
    while (!ends(']')) {
      found.add(value());
    }
    return found;
  }

  private boolean ends(char closing) {
    blanks();
    if (text.charAt(at) == ',') {
      at++;
      return false;
    }
    if (text.charAt(at) == closing) {
      at++;
      return true;
    }
    return false;
  }

  private String string() {
    StringBuilder found = new StringBuilder();
    at++;
    for (char each = text.charAt(at++); each != '"'; each = text.charAt(at++)) {
      if (each != '\\') {
        found.append(each);
        continue;
      }
      char escaped = text.charAt(at++);
      if (escaped == 'u') {
        found.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
        at += 4;
      } else {
        int known = "bfnrt".indexOf(escaped);
        found.append(known < 0 ? escaped : "\b\f\n\r\t".charAt(known));
      }
    }
    return found.toString();
  }

  private Object word() {
    int start = at;
    while (at < text.length() && ",]} \t".indexOf(text.charAt(at)) < 0) {
      at++;
    }
    String word = text.substring(start, at);
    switch (word) {
      case "null":
        return null;
      case "true":
        return true;
      case "false":
        return false;
      default:
        return word.matches("-?[0-9]+") ? (Object) Long.valueOf(word) : Double.valueOf(word);
    }
  }

  private void blanks() {
    while (at < text.length() && text.charAt(at) <= ' ') {
      at++;
    }
  }

  private IllegalArgumentException broken() {
    return new IllegalArgumentException("no JSON at " + at + ": " + text);
  }
}
