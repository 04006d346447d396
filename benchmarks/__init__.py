"""The product's speed against its peers on the same machine in the same run; see README.md."""

import tidemark  # noqa: F401 - before Arrow, which chooses its allocator when it is imported first
