"""Sources of records: one module for each kind of source. They read, and do not judge time."""
