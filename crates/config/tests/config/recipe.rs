//! A recipe that is valid.

/// A warm-up on demonstrations, then reinforcement learning.
pub(crate) const BASE: &str = r#"[model.new]
layers = 2
hidden_size = 32
heads = 4
intermediate_size = 64
max_positions = 64

[data]
generator = "arithmetic"

[reward]
components = [{ kind = "exact" }]

[sampling]
max_new_tokens = 8

[eval]
tasks = 100

[[stage]]
name = "warmup"
method = "sft"
steps = 10
groups_per_batch = 8

[[stage]]
name = "rl"
method = "grpo"
steps = 10
groups_per_batch = 8
"#;
