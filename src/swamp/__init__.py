"""swamp: versioned, shared data for automation and Spark pipelines, on nothing but a bucket."""

__version__ = "0.1.0"
