"""SQL over what a repository holds: its metadata tables and its datasets, in process or on Spark."""
