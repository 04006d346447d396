#!/usr/bin/env bash
# Quix Streams: with closing_strategy="partition" and a grace, a message for a closed window is in no result, and on_late is not called.
# A broker of Kafka from Maven Central runs on this machine meanwhile.
set -euo pipefail
folder=$(mktemp -d)
broker=
trap '[ -z "$broker" ] || kill "$broker" || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet quixstreams==3.28.1
cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>findings</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency></dependencies>
</project>
XML
(cd "$folder" && mvn --quiet -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib)
read -r port controller < <(python3 -c "
import socket
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in sockets))")
cat > "$folder/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$folder/data
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
END
java -cp "$folder/lib/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$folder/server.properties" > "$folder/log.txt" 2>&1
java -Xmx256m -cp "$folder/lib/*" kafka.Kafka "$folder/server.properties" >> "$folder/log.txt" 2>&1 &
broker=$!
(cd "$folder" && ./venv/bin/python - "127.0.0.1:$port" 2>log2.txt) <<'PYTHON'
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from confluent_kafka.admin import AdminClient
from quixstreams import Application
from quixstreams.dataframe.windows import Sum

print("quixstreams", version("quixstreams"), "- values 1 at 12:01, 2 at 12:07:30, 4 at 12:04; windows of 5 minutes")
MESSAGES = (("a", 1, 1, 0), ("b", 2, 7, 30), ("a", 4, 4, 0), ("a", 8, 30, 0), ("b", 16, 31, 0))
until = time.monotonic() + 90
while True:
    try:
        AdminClient({"bootstrap.servers": sys.argv[1], "log_level": 0}).list_topics(timeout=5)
        break
    except Exception:
        if time.monotonic() > until:
            raise


def run(strategy: str, grace: timedelta) -> tuple[list[int], list[int]]:
    """Return the sums of closed windows, and the values that on_late was called with."""
    name, sums, late = f"{strategy}-{grace.seconds}", [], []
    app = Application(sys.argv[1], consumer_group=name, auto_offset_reset="earliest", state_dir=name, loglevel="ERROR")
    topic = app.topic(name, key_deserializer="str")
    with app.get_producer() as producer:
        for key, value, minute, second in MESSAGES:
            at = datetime(2026, 1, 5, 12, minute, second, tzinfo=UTC)
            producer.produce(name, key=key, value=json.dumps(value), timestamp=int(at.timestamp() * 1000))

    def on_late(value: int, *_: object) -> bool:
        late.append(value)
        return False

    frame = app.dataframe(topic).tumbling_window(timedelta(minutes=5), grace_ms=grace, on_late=on_late)
    frame.agg(total=Sum()).final(closing_strategy=strategy).update(lambda row: sums.append(row["total"]))
    app.run(timeout=10)  # seconds without a message
    return sorted(sums), late


minute, nothing = timedelta(minutes=1), timedelta(0)
found = {(s, g.seconds): run(s, g) for s, g in (("partition", minute), ("partition", nothing), ("key", minute))}
for (strategy, grace), (sums, late) in found.items():
    print(f"closing_strategy={strategy!r}, grace {grace} s: sums {sums}, late {late}, value 4", end=" ")
    print("is nowhere" if 4 not in late and 5 not in sums else "is there")
expected = {("partition", 60): ([1, 2], []), ("partition", 0): ([1, 2], [4]), ("key", 60): ([2, 5], [])}
raise SystemExit(0 if found == expected else 1)
PYTHON
