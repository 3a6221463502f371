//! "Did you mean …": the nearest known name.

/// Edit distance with transpositions of neighbours (optimal string alignment), case and `-`/`_` ignored.
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

/// The known name that `given` most likely stands for, if any is near enough.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (given.chars().count() / 3).max(1);
    known
        .iter()
        .map(|name| (distance(given, name), *name))
        .filter(|(d, name)| *d <= limit && *d < name.chars().count())
        .min_by_key(|(d, _)| *d)
        .map(|(_, name)| name)
}

/// Names that users bring from elsewhere: theirs, ours (with its table, where others have a key of that name), and who has
/// it.
const FOREIGN: &[(&str, &str, &str)] = &[
    ("optimizer", "trainer", "the optimiser's settings are the trainer's"),
    ("optim", "trainer", "the optimiser's settings are the trainer's"),
    ("train", "trainer", "TRL's and verl's word"),
    ("dataset", "data", "TRL's word"),
    ("batch_size", "batch", "many programs call it so"),
    ("per_device_train_batch_size", "batch", "TRL counts per device"),
    ("train_batch_size", "batch", "verl's name"),
    ("max_steps", "steps", "TRL's name"),
    ("lr", "learning_rate", "the short name"),
    ("max_completion_length", "max_new_tokens", "TRL's name"),
    ("max_tokens", "max_new_tokens", "vLLM's name"),
    ("response_length", "max_new_tokens", "verl's name"),
    ("num_generations", "group_size", "TRL's name"),
    ("rollouts_per_example", "group_size", "prime-rl's name"),
    ("n", "group_size", "verl's name"),
    ("epsilon", "loss.clip_low", "TRL's name"),
    ("epsilon_high", "loss.clip_high", "TRL's name"),
    ("clip_ratio", "loss.clip_low", "verl's name, for both sides"),
    ("num_iterations", "epochs", "TRL's name"),
    ("ppo_epochs", "epochs", "verl's name"),
    ("beta", "kl", "TRL's name for the weight of the KL, `kl.coef`"),
    ("clip_grad", "max_grad_norm", "verl's name"),
    ("lr_scheduler_type", "trainer.schedule", "TRL's name"),
    ("output_dir", "directory", "TRL's name"),
    ("max_head_offpolicyness", "max_staleness", "AReaL's name"),
    ("max_off_policy_steps", "max_staleness", "prime-rl's name"),
    ("async_generation_ratio", "max_staleness", "ROLL's name"),
    ("staleness", "max_staleness", "a short name"),
    ("model_name_or_path", "model.path", "TRL's name"),
    ("num_hidden_layers", "layers", "the name in `config.json`"),
    ("num_attention_heads", "heads", "the name in `config.json`"),
    ("num_key_value_heads", "kv_heads", "the name in `config.json`"),
    ("max_position_embeddings", "max_positions", "the name in `config.json`"),
    ("tie_word_embeddings", "tie_embeddings", "the name in `config.json`"),
];

/// What another program's name of a setting is called here, with its table where that is not `table`, which has the keys
/// `known`; and whose name it is.
pub fn translate(
    given: &str,
    table: &str,
    known: &[&str],
    sections: &[(&str, &[&str])],
) -> Option<(String, &'static str)> {
    let (_, ours, whose) = FOREIGN.iter().find(|(theirs, ..)| *theirs == given)?;
    let (own_table, key) = ours.rsplit_once('.').unwrap_or(("", ours));
    if known.contains(&key) && (own_table.is_empty() || own_table == table) {
        return Some((key.to_owned(), whose));
    }
    if !own_table.is_empty() {
        return Some(((*ours).to_owned(), whose));
    }
    let (elsewhere, _) = sections.iter().find(|(_, keys)| keys.contains(&key))?;
    Some((format!("{elsewhere}.{key}"), whose))
}

/// ``did you mean `name`?``, or nothing.
pub fn did_you_mean(given: &str, known: &[&str]) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!("did you mean `{name}`?"))
}

/// `` `a`, `b` and `c` ``.
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
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["group_size", "learning_rate", "steps", "kl_coefficient"];
        assert_eq!(nearest("grup_size", &known), Some("group_size"));
        assert_eq!(nearest("group-size", &known), Some("group_size"));
        assert_eq!(nearest("Learning_Rate", &known), Some("learning_rate"));
        assert_eq!(nearest("stesp", &known), Some("steps"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("x", &["a"]), None);
    }

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(list::<&str>(&[]), "none");
        assert_eq!(list(&["a"]), "`a`");
        assert_eq!(list(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
