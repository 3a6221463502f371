//! Tasks from JSONL, Parquet and built-in generators, with a resumable cursor
