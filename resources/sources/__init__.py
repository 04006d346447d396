"""Where records come from. One module per source kind; each reads, none judges time."""
