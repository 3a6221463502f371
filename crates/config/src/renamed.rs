//! Former names of keys and values. Using one is an error that names the new one.

use crate::layered::renames::Renames;

/// Former names, by table. A name is never reused for another setting of the same table.
pub(crate) const RENAMED: Renames<'static> = Renames {
    keys: &[
        ("model", &[("compute", "dtype")]),
        ("stage", &[("batch", "groups_per_batch")]),
        ("trainer", &[("recompute", "activation_checkpointing"), ("beta1", "betas"), ("beta2", "betas")]),
        ("algorithm", rloom_algo::RENAMED_KEYS),
        ("reward", &[("deadline_seconds", "timeout_seconds")]),
        ("rollout", &[("deadline_seconds", "timeout_seconds")]),
        ("schedule", &[("on_failure", "max_failures")]),
    ],
    values: &[("schedule.stragglers", "put_off", "defer")],
};
