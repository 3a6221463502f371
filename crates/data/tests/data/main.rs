//! Data files, data sets of the hub, and generated tasks.

mod games;
mod generators;
mod hostile;
mod hub;
mod jsonl;
mod made_parquet;
mod mixtures;
mod parquet;
mod rows;
mod settings;
