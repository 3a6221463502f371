//! A recipe that runs in a second, for tests of whole runs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use rloom_config::Config;

/// A warm-up on demonstrations, then reinforcement learning on sums of small numbers.
const TEXT: &str = r#"
[run]
name = "tiny"
seed = 3
threads = 2
checkpoint_every = 2
keep_every = 1

[model.new]
family = "qwen3"
layers = 2
hidden_size = 32
heads = 4
kv_heads = 2
intermediate_size = 64
max_positions = 32

[data]
generator = "arithmetic"
operations = ["+"]
max_digits = 2

[eval]
every = 3
tasks = 32

[sampling]
max_new_tokens = 5

[reward]
components = [{ kind = "exact" }]

[[stage]]
name = "warmup"
method = "sft"
steps = 4
groups_per_batch = 16

[stage.trainer]
learning_rate = 3e-3

[[stage]]
name = "rl"
method = "grpo"
steps = 6
groups_per_batch = 6

[stage.algorithm]
group_size = 4

[stage.trainer]
learning_rate = 1e-3
"#;

/// Messages one after another.
#[cfg(unix)]
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template=\"{% for message in messages %}{{ message.content }}\
     {% if message.role == 'assistant' %}<|eos|>{% endif %}{% endfor %}\"";

/// The recipe with overrides, for a run below `directory`.
pub(crate) fn config(directory: &Path, overrides: &[&str]) -> Config {
    of_text(TEXT, directory, overrides)
}

fn of_text(text: &str, directory: &Path, overrides: &[&str]) -> Config {
    let parent = format!("run.directory={}", directory.display());
    let all: Vec<&str> = std::iter::once(parent.as_str()).chain(overrides.iter().copied()).collect();
    Config::from_text("tiny.toml", text, &all).map_err(|errors| errors.to_string()).unwrap()
}

/// The recipe with a second stage that learns from given completions instead of sampling.
#[cfg(unix)]
pub(crate) fn without_sampling(directory: &Path, overrides: &[&str]) -> Config {
    of_text(&TEXT.replace("[sampling]", "[eval.sampling]").replace(GROUPS, ""), directory, overrides)
}

/// The recipe with a second stage that compares nothing.
#[cfg(unix)]
pub(crate) fn without_groups(directory: &Path, overrides: &[&str]) -> Config {
    of_text(&TEXT.replace(GROUPS, ""), directory, overrides)
}

/// The settings of the second stage's algorithm.
#[cfg(unix)]
const GROUPS: &str = "[stage.algorithm]\ngroup_size = 4\n";

/// The recipe without its model, for overrides that name one.
pub(crate) fn without_model() -> String {
    let (head, rest) = TEXT.split_once("[model.new]").unwrap();
    let (_, rest) = rest.split_once("[data]").unwrap();
    format!("{head}[data]{rest}")
}
