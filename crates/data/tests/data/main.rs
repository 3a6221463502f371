//! Data files, data sets of the hub, and generated tasks.

mod generators;
mod hub;
mod jsonl;
mod parquet;
mod rows;
mod settings;
