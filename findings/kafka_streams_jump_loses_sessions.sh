#!/usr/bin/env bash
# Kafka Streams: with onWindowClose a session is never given if stream time jumps past its gap and grace.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>findings</groupId><artifactId>jump</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams-test-utils</artifactId><version>4.4.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
XML
mvn --quiet -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib
cat > Jump.java <<'JAVA'
import java.time.Duration;
import java.time.Instant;
import java.util.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.SessionStore;

public class Jump {
  /** Counts in sessions of gap 10 s and grace 5 s. */
  static List<String> finals(EmitStrategy strategy, Duration retention, int... seconds) {
    StreamsBuilder builder = new StreamsBuilder();
    Materialized<String, Long, SessionStore<Bytes, byte[]>> store = Materialized.with(Serdes.String(), Serdes.Long());
    if (retention != null) store = store.withRetention(retention);
    SessionWindows sessions = SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(5));
    KTable<Windowed<String>, Long> counts = builder.stream("in", Consumed.with(Serdes.String(), Serdes.String()))
        .groupByKey().windowedBy(sessions).emitStrategy(strategy).count(store);
    if (strategy.type() == EmitStrategy.StrategyType.ON_WINDOW_UPDATE)
      counts = counts.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
    counts.toStream((window, count) -> window.key()).to("out", Produced.with(Serdes.String(), Serdes.Long()));
    Properties properties = new Properties();
    properties.put("application.id", "jump" + UUID.randomUUID());
    properties.put("bootstrap.servers", "none:1");
    properties.put("state.dir", System.getProperty("user.dir") + "/state");
    properties.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0L);
    List<String> found = new ArrayList<>();
    try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties)) {
      var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
      var out = driver.createOutputTopic("out", new StringDeserializer(), new LongDeserializer());
      for (int second : seconds)
        in.pipeInput(second < 2 ? "a" : "b", "x", Instant.parse("2026-01-05T12:00:00Z").plusSeconds(second));
      out.readKeyValuesToList().forEach(row -> found.add(row.key + "=" + row.value));
    }
    return found;
  }

  public static void main(String[] words) {
    EmitStrategy onClose = EmitStrategy.onWindowClose(), onUpdate = EmitStrategy.onWindowUpdate();
    List<String> slow = finals(onClose, null, 0, 1, 12, 17), jump = finals(onClose, null, 0, 1, 3600);
    List<String> kept = finals(onClose, Duration.ofDays(1), 0, 1, 3600), suppressed = finals(onUpdate, null, 0, 1, 3600);
    System.out.println("kafka-streams 4.4.0, two records of key a, then others of key b");
    System.out.println("onWindowClose, b 12 s and 17 s later: " + slow);
    System.out.println("onWindowClose, b an hour later: " + jump + ", with a retention of a day: " + kept);
    System.out.println("suppress, b an hour later: " + suppressed);
    List<String> a = List.of("a=2");
    System.exit(slow.equals(a) && jump.isEmpty() && kept.equals(a) && suppressed.equals(a) ? 0 : 1);
  }
}
JAVA
java -cp "lib/*" Jump.java
