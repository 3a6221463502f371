//! Suggestions for unknown names: the nearest known name, and the names of other programs.

/// Edit distance with transpositions of neighbours (optimal string alignment), ignoring case and `-`/`_`.
fn distance(a: &str, b: &str) -> usize {
    let normal = |s: &str| -> Vec<char> {
        s.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
    };
    let (a, b) = (normal(a), normal(b));
    let width = b.len() + 1;
    let mut d = vec![0; (a.len() + 1) * width];
    for (j, cell) in d.iter_mut().take(width).enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        d[i * width] = i;
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (d[(i - 1) * width + j] + 1)
                .min(d[i * width + j - 1] + 1)
                .min(d[(i - 1) * width + j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(d[(i - 2) * width + j - 2] + 1);
            }
            d[i * width + j] = best;
        }
    }
    d[a.len() * width + b.len()]
}

/// Returns the known name nearest to `given`, if it is near enough.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (given.chars().count() / 3).max(1);
    known
        .iter()
        .map(|name| (distance(given, name), *name))
        .filter(|(d, name)| *d <= limit && *d < name.chars().count())
        .min_by_key(|(d, _)| *d)
        .map(|(_, name)| name)
}

/// Names of settings in other programs: theirs, ours (with its table if others have such a key), and their origin.
const FOREIGN: &[(&str, &str, &str)] = &[
    ("optimizer", "trainer", "the optimiser is part of the trainer"),
    ("optim", "trainer", "the optimiser is part of the trainer"),
    ("train", "trainer", "the name in TRL and verl"),
    ("dataset", "data", "the name in TRL"),
    ("batch_size", "groups_per_batch", "the name in many programs"),
    ("per_device_train_batch_size", "groups_per_batch", "the name in TRL, which counts per device"),
    ("train_batch_size", "groups_per_batch", "the name in verl"),
    ("max_steps", "steps", "the name in TRL"),
    ("lr", "learning_rate", "an abbreviation"),
    ("max_completion_length", "max_new_tokens", "the name in TRL"),
    ("max_tokens", "max_new_tokens", "the name in vLLM"),
    ("response_length", "max_new_tokens", "the name in verl"),
    ("num_generations", "group_size", "the name in TRL"),
    ("rollouts_per_example", "group_size", "the name in prime-rl"),
    ("n", "group_size", "the name in verl"),
    ("epsilon", "loss.clip_low", "the name in TRL"),
    ("epsilon_high", "loss.clip_high", "the name in TRL"),
    ("clip_ratio", "loss.clip_low", "the name in verl, for both sides"),
    ("num_iterations", "epochs", "the name in TRL"),
    ("ppo_epochs", "epochs", "the name in verl"),
    ("beta", "kl", "the name in TRL for the weight of the KL, `kl.coef`"),
    ("clip_grad", "max_grad_norm", "the name in verl"),
    ("lr_scheduler_type", "trainer.schedule", "the name in TRL"),
    ("output_dir", "directory", "the name in TRL"),
    ("max_head_offpolicyness", "max_staleness", "the name in AReaL"),
    ("max_off_policy_steps", "max_staleness", "the name in prime-rl"),
    ("async_generation_ratio", "max_staleness", "the name in ROLL"),
    ("staleness", "max_staleness", "an abbreviation"),
    ("model_name_or_path", "model.path", "the name in TRL"),
    ("num_hidden_layers", "layers", "the name in `config.json`"),
    ("num_attention_heads", "heads", "the name in `config.json`"),
    ("num_key_value_heads", "kv_heads", "the name in `config.json`"),
    ("max_position_embeddings", "max_positions", "the name in `config.json`"),
    ("tie_word_embeddings", "tie_embeddings", "the name in `config.json`"),
];

/// Translates another program's name of a setting: returns our name, with its table unless that is `table` (which has the
/// keys `known`), and the origin of the other name.
pub fn translate(
    given: &str,
    table: &str,
    known: &[&str],
    sections: &[(&str, &[&str])],
) -> Option<(String, &'static str)> {
    let (_, ours, origin) = FOREIGN.iter().find(|(theirs, ..)| *theirs == given)?;
    let (own_table, key) = ours.rsplit_once('.').unwrap_or(("", ours));
    if known.contains(&key) && (own_table.is_empty() || own_table == table) {
        return Some((key.to_owned(), origin));
    }
    if !own_table.is_empty() {
        return Some(((*ours).to_owned(), origin));
    }
    let (elsewhere, _) = sections.iter().find(|(_, keys)| keys.contains(&key))?;
    Some((format!("{elsewhere}.{key}"), origin))
}

/// Returns ``did you mean `name`?``, or an empty string.
pub fn did_you_mean(given: &str, known: &[&str]) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!("did you mean `{name}`?"))
}

/// Formats a list: `` `a`, `b` and `c` ``.
pub fn list<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("`{}`", n.as_ref())).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["group_size", "learning_rate", "steps", "kl_coefficient"];
        assert_eq!(nearest("grup_size", &known), Some("group_size"));
        assert_eq!(nearest("group-size", &known), Some("group_size"));
        assert_eq!(nearest("Learning_Rate", &known), Some("learning_rate"));
        assert_eq!(nearest("stesp", &known), Some("steps"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("x", &["a"]), None);
    }

    #[test]
    fn lists_are_quoted_and_joined() {
        assert_eq!(list::<&str>(&[]), "none");
        assert_eq!(list(&["a"]), "`a`");
        assert_eq!(list(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
