//! Data files, data sets of the hub, and generated tasks.

mod compressed;
mod formats;
mod games;
mod generators;
mod hostile;
mod hub;
mod jsonl;
mod made_parquet;
mod mixtures;
mod parquet;
mod row_types;
mod rows;
mod settings;
