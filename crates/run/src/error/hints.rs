//! Hints that depend on the error.

pub(super) fn steps_hint(stage: &str, trained: Option<u64>) -> String {
    match trained {
        Some(steps) => format!("set `stage.{stage}.steps` to at least {steps}"),
        None => format!("leave out `stage.{stage}.steps`: a later stage has begun"),
    }
}

pub(super) fn sampling_stages_hint(stages: &[String]) -> String {
    if stages.is_empty() {
        return "supervised stages generate no samples".to_owned();
    }
    let names: Vec<String> = stages.iter().map(|name| format!("`{name}`")).collect();
    format!("stages that sample: {}", names.join(", "))
}

pub(super) fn rebuild_hint(base: u64, missing_batch: Option<u64>) -> String {
    match missing_batch {
        None => format!("`--rebuild` retrains the recorded batches from version {base} on"),
        Some(batch) => format!(
            "retraining from version {base} is impossible, too: the groups of batch {batch} are in neither `rollouts` nor \
             the journal. `run.keep_every` keeps more checkpoints, `run.keep_rollouts` more rollouts"
        ),
    }
}
