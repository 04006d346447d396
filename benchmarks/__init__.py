"""The product's speed against its peers on the same machine in the same run; see README.md."""
