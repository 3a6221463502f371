//! Warnings of settings that are valid and cannot act.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::recipe::BASE;
use rloom_config::Config;

fn warnings(overrides: &[&str]) -> Vec<String> {
    let config =
        Config::from_text("base.toml", BASE, overrides).map_err(|errors| errors.to_string()).unwrap();
    let resolved = Config::from_text("config.toml", &config.to_toml(), &[] as &[&str]).unwrap();
    assert_eq!(config.warnings(), resolved.warnings(), "a resumed run has the same warnings");
    config.warnings().iter().map(ToString::to_string).collect()
}

const CLIP: &str = "stage.rl.algorithm.loss.clip_high=0.28";

#[test]
fn a_clip_that_cannot_act_is_reported() {
    let expected = "`stage.rl.algorithm.loss.clip_high` has no effect: each batch is trained in a single optimiser step by \
                    the policy that sampled it, whose importance ratios are all 1; set `algorithm.minibatches = 2` or \
                    `schedule.max_staleness = 1`, or remove it";
    assert_eq!(warnings(&[CLIP]), [expected]);
    let both = warnings(&[CLIP, "stage.rl.algorithm.loss.dual_clip=3.0", "stage.rl.groups_per_batch=1"]);
    assert_eq!(both.len(), 1);
    let start = "`stage.rl.algorithm.loss.clip_high`, `stage.rl.algorithm.loss.dual_clip` have no effect: ";
    assert!(both[0].starts_with(start), "{both:?}");
    assert!(
        both[0].ends_with("set `algorithm.epochs = 2` or `schedule.max_staleness = 1`, or remove them"),
        "{both:?}"
    );
}

#[test]
fn a_clip_that_can_act_and_a_default_are_not_reported() {
    for acts in
        ["stage.rl.algorithm.minibatches=4", "stage.rl.algorithm.epochs=2", "schedule.max_staleness=1"]
    {
        assert_eq!(warnings(&[CLIP, acts]), [] as [&str; 0], "{acts}");
    }
    for method in ["grpo", "dapo", "gspo", "ppo", "cispo"] {
        assert_eq!(warnings(&[&format!("stage.rl.method={method}")]), [] as [&str; 0], "{method}");
    }
}

#[test]
fn a_warmup_longer_than_the_stage_is_reported() {
    let message = "`stage.rl.trainer.warmup_steps` is 40, but the stage has 40 optimiser steps: `learning_rate` is never \
                   reached; lower `warmup_steps`, or raise `steps`";
    let four = "stage.rl.algorithm.minibatches=4";
    assert_eq!(warnings(&[four, "stage.rl.trainer.warmup_steps=40"]), [message]);
    assert_eq!(warnings(&[four, "stage.rl.trainer.warmup_steps=39"]), [] as [&str; 0]);
}
