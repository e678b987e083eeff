import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.OffsetTime;
import java.time.ZonedDateTime;
import java.util.Map;

/** Values of rows: JSON's own, or {"t": type, "v": text} for those that JSON has not. */
final class Values {
  private Values() {}

  static Object of(Object given) {
    if (!(given instanceof Map)) {
      return given;
    }
    Map<?, ?> typed = (Map<?, ?>) given;
    Object value = typed.get("v");
    return of(String.valueOf(typed.get("t")), value, String.valueOf(value));
  }

  private static Object of(String type, Object value, String text) {
    switch (type) {
      case "null":
        return null;
      case "object":
        return new Object();
      case "str":
        return text;
      case "char":
        return text.charAt(0);
      case "bool":
        return value;
      case "int":
        return integer(text);
      case "decimal":
        return new BigDecimal(text);
      case "float":
        return Double.valueOf(text);
      case "float32":
        return Float.valueOf(text);
      case "bytes":
        return bytes(text);
      case "json":
        return Json.parse(text);
      default:
        return moment(type, text);
    }
  }

  private static Object moment(String type, String text) {
    switch (type) {
      case "localdate":
        return LocalDate.parse(text);
      case "localtime":
        return LocalTime.parse(text);
      case "offsettime":
        return OffsetTime.parse(text);
      case "localdatetime":
        return LocalDateTime.parse(text);
      case "offsetdatetime":
        return OffsetDateTime.parse(text);
      case "zoneddatetime":
        return ZonedDateTime.parse(text);
      case "instant":
        return Instant.parse(text);
      default:
        throw new IllegalArgumentException("no value of type " + type);
    }
  }

  private static Object integer(String text) {
    BigInteger number = new BigInteger(text);
    return number.bitLength() < 64 ? (Object) number.longValue() : number;
  }

  private static byte[] bytes(String hex) {
    byte[] found = new byte[hex.length() / 2];
    for (int i = 0; i < found.length; i++) {
      found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
    }
    return found;
  }
}
