"""A source of a spec, whatever kind it is: the choice between the kinds.

Here: which kind the mapping of a source is read as. Not here: the keys of each kind.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from tidemark.timeops.spec.kafka_source import KafkaSource
from tidemark.timeops.spec.source import DeltaSource, FilesSource

FILES, DELTA, KAFKA = "[files]", "[delta]", "[kafka]"
"""Steps of pydantic's paths that say which kind of source was read; no message shows them."""

SOURCE_MODELS: Mapping[str, type[FilesSource | DeltaSource | KafkaSource]] = MappingProxyType(
    {FILES: FilesSource, DELTA: DeltaSource, KAFKA: KafkaSource}
)
"""The keys of each kind."""


def _tag_of(value: object) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return {"delta": DELTA, "kafka": KAFKA}.get(str(kind), FILES)


AnySource = Annotated[
    Annotated[FilesSource, Tag(FILES)] | Annotated[DeltaSource, Tag(DELTA)] | Annotated[KafkaSource, Tag(KAFKA)],
    Discriminator(_tag_of),
]
"""A source of a spec: its `kind` says which one. Without a kind it is judged as one of files."""

_ANY: TypeAdapter[FilesSource | DeltaSource | KafkaSource] = TypeAdapter(AnySource)


def read_source(data: object) -> FilesSource | DeltaSource | KafkaSource | None:
    """Read the mapping of one source; None where something is wrong with it."""
    try:
        return _ANY.validate_python(data)
    except ValidationError:
        return None
