//! Whole runs.

mod agents;
mod changes;
mod credit;
mod debate;
mod distillation;
mod domains;
mod engines;
mod episodes;
mod exactness;
mod failures;
mod full_disk;
mod initial;
mod kills;
mod learning;
mod lora;
mod methods;
mod not_finite;
mod numeric_path;
mod other_engines;
mod policies;
mod preferences;
mod python_methods;
mod quantized;
mod recipe;
mod recorded_rollouts;
mod recovery;
mod references;
mod replay;
mod reuse;
mod reward_models;
mod rows_of_runs;
mod sampler;
mod search;
mod segments;
mod self_play;
mod staleness;
#[expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests of crate remote, which use more of it and fail by panicking"
)]
#[path = "../../../remote/tests/remote/stand_in/mod.rs"]
mod stand_in;
mod tools;
mod validation;
