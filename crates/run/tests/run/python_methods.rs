//! Runs whose advantages and losses are Python functions; without Python 3.10 or later these tests say so and pass.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, or says that it is skipped"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use miette::Diagnostic;
use rloom_config::Config;
use rloom_hub::Hub;
use rloom_run::{Origin, ResumeOptions, RunError, StopFlag, Summary, Verdict};
use rloom_telemetry::{Event, read_events};

use crate::recipe;

/// Rewards that differ within every group, so that every batch changes the weights.
const CONTRAST: &str = "reward.components=[{kind='random'},{kind='exact'}]";
const GUIDE: &str = include_str!("../../../../docs/guides/python.md");

fn has_python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = Command::new("python3").args(["-c", check]).status().is_ok_and(|status| status.success());
    if !found {
        println!("skipped: there is no python3 of version 3.10 or later");
    }
    found
}

/// A method in a file, next to its run.
struct Method {
    folder: tempfile::TempDir,
}

impl Method {
    fn new(source: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("method.py"), source).unwrap();
        Self { folder }
    }

    /// A setting that names a function of the file.
    fn part(&self, part: &str, settings: &str) -> String {
        let file = self.folder.path().join("method.py");
        let function = format!("{}:{part}", file.display());
        format!("stage.rl.algorithm.{part}={{kind='python',function='{function}'{settings}}}")
    }

    fn config(&self, overrides: &[&str]) -> Config {
        recipe::config(self.folder.path(), &[&[CONTRAST], overrides].concat())
    }

    fn train(&self, overrides: &[&str]) -> Result<Summary, RunError> {
        rloom_run::train(&self.config(overrides), &mut (), &StopFlag::default())
    }
}

fn weights(config: &Config, step: u64) -> Vec<u8> {
    let folder = config.run_directory().join("checkpoints");
    std::fs::read(folder.join(format!("rl-step-{step:06}/model.safetensors"))).unwrap()
}

/// The method of the guide.
fn example() -> &'static str {
    let blocks = GUIDE.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains("def loss(")).unwrap()
}

/// Several optimiser steps per batch, so that ratios differ from 1 and some are clipped.
const STEPS: [&str; 3] =
    ["stage.rl.steps=2", "stage.rl.algorithm.epochs=3", "stage.rl.trainer.learning_rate=0.01"];

#[test]
fn the_method_of_the_guide_trains_to_the_weights_of_grpo() {
    if !has_python() {
        return;
    }
    assert!(example().lines().filter(|line| !line.trim().is_empty()).count() <= 20, "twenty lines");
    let method = Method::new(example());
    let (advantage, loss) = (method.part("advantage", ""), method.part("loss", ""));
    let built_in = Method::new("");
    built_in.train(&STEPS).unwrap();
    let summary = built_in.config(&STEPS);
    method.train(&[&STEPS[..], &[&advantage, &loss]].concat()).unwrap();
    assert!(weights(&method.config(&STEPS), 2) == weights(&summary, 2));
    // The clip matters: without it the weights are others.
    let unclipped = Method::new(&example().replace("high=1.2", "high=9.9"));
    let (advantage, loss) = (unclipped.part("advantage", ""), unclipped.part("loss", ""));
    unclipped.train(&[&STEPS[..], &[&advantage, &loss]].concat()).unwrap();
    assert!(weights(&unclipped.config(&STEPS), 2) != weights(&summary, 2));
}

/// Random advantages, and an exception in the middle of the run until the file `go` exists.
const RANDOM: &str = "
import os, random
here = os.path.dirname(__file__)
def advantage(rewards, lengths, step):
    with open(os.path.join(here, 'calls'), 'a') as calls:
        print(step, file=calls)
    if step == 3 and not os.path.exists(os.path.join(here, 'go')):
        raise LookupError('not yet')
    return [random.gauss(0, 1) if n % 2 else [random.gauss(0, 1) for _ in range(n)] for n in lengths]
";

/// The steps after the last checkpoint are trained again on the recorded numbers; other ones would give other weights,
/// which is an error.
#[test]
fn a_resumed_run_trains_on_the_recorded_advantages() {
    if !has_python() {
        return;
    }
    let method = Method::new(RANDOM);
    let advantage = method.part("advantage", "");
    let overrides = ["run.checkpoint_every=100", "stage.rl.steps=5", &advantage];
    let error = method.train(&overrides).unwrap_err().to_string();
    assert!(error.contains("stage `rl`, step 4") && error.contains("LookupError: not yet"), "{error}");
    assert!(error.contains("method.py\", line 8, in advantage"), "{error}");
    std::fs::write(method.folder.path().join("go"), "").unwrap();
    let run = method.config(&overrides).run_directory();
    resume(&run, ResumeOptions::default()).unwrap();
    let calls = std::fs::read_to_string(method.folder.path().join("calls")).unwrap();
    assert_eq!(calls, "0\n1\n2\n3\n3\n4\n");
}

/// Without the journal of a step its rollouts have the numbers.
#[test]
fn a_version_is_retrained_on_the_advantages_of_the_rollouts() {
    if !has_python() {
        return;
    }
    let method = Method::new(RANDOM);
    std::fs::write(method.folder.path().join("go"), "").unwrap();
    let advantage = method.part("advantage", "");
    let config = method.config(&["run.keep_every=0", "run.keep_last=1", "eval.every=100", &advantage]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let (name, hub) = ("19/2".parse().unwrap(), Arc::new(Hub::from_env()));
    let found =
        rloom_run::replay(&config.run_directory(), &config, &name, &hub, true, &mut |_, _| {}).unwrap();
    assert_eq!(found.verdict, Verdict::Equal);
    assert_eq!(found.versions, BTreeMap::from([(3, Origin::Rebuilt { from: 0 })]));
    let calls = std::fs::read_to_string(method.folder.path().join("calls")).unwrap();
    assert_eq!(calls, "0\n1\n2\n3\n4\n5\n");
}

fn resume(run: &Path, options: ResumeOptions) -> Result<Summary, RunError> {
    let config = Config::load(&[run.join("config.toml")], &[] as &[&str]);
    let config = config.map_err(|errors| errors.to_string()).unwrap();
    rloom_run::resume(run, &config, options, &mut (), &StopFlag::default())
}

#[test]
fn a_changed_file_of_a_function_is_named_unless_it_is_accepted() {
    if !has_python() {
        return;
    }
    let method = Method::new(example());
    let overrides = ["stage.rl.steps=1", &method.part("advantage", "")];
    method.train(&overrides).unwrap();
    let run = method.config(&overrides).run_directory();
    resume(&run, ResumeOptions::default()).unwrap();
    let file = method.folder.path().join("method.py");
    std::fs::write(&file, example().replace("1e-4", "1e-5")).unwrap();
    let error = resume(&run, ResumeOptions::default()).unwrap_err();
    assert!(matches!(error, RunError::DataChanged { .. }), "{error}");
    assert!(error.to_string().contains("method.py has changed since the run started"), "{error}");
    resume(&run, ResumeOptions { accept_changed_data: true }).unwrap();
    // Accepted once, it is the function of the run.
    resume(&run, ResumeOptions::default()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let error = resume(&run, ResumeOptions::default()).unwrap_err();
    assert!(error.to_string().contains("method.py"), "{error}");
}

#[test]
fn wrong_derivatives_end_a_run_before_its_first_step() {
    if !has_python() {
        return;
    }
    let refused = |source: &str| {
        let method = Method::new(source);
        let error = method.train(&[&method.part("loss", "")]).unwrap_err();
        assert!(!method.config(&[]).run_directory().join("checkpoints/warmup-step-000002").exists());
        assert!(matches!(error, RunError::Method(_)), "{error}");
        let hint = error.help().map(|help| help.to_string()).unwrap_or_default();
        (error.to_string(), hint)
    };
    let sign = "d_logprob.append(-m * ratio * a / n)";
    // MethodError::Derivative; the guide's method, with the right sign, is accepted.
    let (found, hint) = refused(&example().replace(sign, "d_logprob.append(m * ratio * a / n)"));
    assert!(hint.starts_with("compare the sign and the factors"), "{hint}");
    let numbers = "d_logprob[0] is 0.037037, but the loss changes by -0.037037 per unit of logprob there \
                   (logprob -0.25, old -0.25, advantage 1)";
    assert!(found.contains(numbers), "{found}");
    let (found, _) = refused(&example().replace(sign, "d_logprob.append(-m * ratio * a / n / 2)"));
    assert!(found.contains("d_logprob[0] is -0.018519, but the loss changes by -0.037037"), "{found}");
    // The gradient of a clipped token.
    let (found, _) =
        refused(&example().replace("d_logprob.append(0.0)", "d_logprob.append(-m * ratio * a / n)"));
    assert!(found.contains("but the loss changes by 0.000000 per unit of logprob"), "{found}");
    let (found, _) = refused("def loss(logprob, entropy): return (-sum(entropy), [0] * len(logprob))\n");
    assert!(found.contains("d_entropy[0] is 0.000000, but the loss changes by -1.000000"), "{found}");
    let local =
        "def loss(logprob, lengths):\n    n = sum(lengths)\n    return -sum(logprob) / n, [-1 / n] * n\n";
    // MethodError::Split
    let (found, hint) = refused(local);
    assert!(found.contains("depends on the division into micro-batches"), "{found}");
    assert!(hint.contains("divide by `divisor`, `tokens` or `sequences`"), "{hint}");
    let method = Method::new(
        &local.replace("logprob, lengths", "logprob, lengths, tokens").replace("/ n", "/ tokens"),
    );
    method.train(&["stage.rl.steps=1", &method.part("loss", "")]).unwrap();
}

#[test]
fn losses_with_kinks_and_weights_held_constant_are_accepted() {
    if !has_python() {
        return;
    }
    let cispo = "import math\n\
                 def loss(logprob, held, old, advantage, divisor, mask):\n\
                 \x20   weight = [-m * min(math.exp(h - o), 5.0) * a / n\n\
                 \x20             for h, o, a, n, m in zip(held, old, advantage, divisor, mask)]\n\
                 \x20   return sum(w * lp for w, lp in zip(weight, logprob)), weight\n";
    let absolute = "def loss(logprob, old, tokens):\n\
                    \x20   sign = [(d > 0) - (d < 0) for d in map(lambda lp, o: lp - o, logprob, old)]\n\
                    \x20   value = sum(abs(lp - o) for lp, o in zip(logprob, old)) / tokens\n\
                    \x20   return value, [s / tokens for s in sign]\n";
    let reference = "def loss(logprob, reference, tokens, entropy):\n\
                     \x20   d = [(lp - r) / tokens for lp, r in zip(logprob, reference)]\n\
                     \x20   value = sum((lp - r) ** 2 for lp, r in zip(logprob, reference)) / 2 / tokens\n\
                     \x20   bonus = sum(entropy) / tokens\n\
                     \x20   return value - bonus, d, [-1 / tokens] * len(d)\n";
    for (source, settings) in [(cispo, ""), (absolute, ""), (reference, ",reference=true")] {
        let method = Method::new(source);
        let overrides = ["stage.rl.steps=1", &method.part("loss", settings)];
        method.train(&overrides).unwrap();
    }
}

/// Random decisions, noted in a file, and an exception in the middle until the file `go` exists.
const FILTER: &str = "
import os, random
here = os.path.dirname(__file__)
calls = os.path.join(here, 'calls')
def keep(rewards, groups, rows):
    assert len(rewards) == len(groups) == len(rows) == 4 and set(groups) == {0}
    if not os.path.exists(os.path.join(here, 'go')) and os.path.exists(calls) and len(open(calls).readlines()) == 20:
        raise LookupError('not yet')
    kept = random.random() < 0.6
    with open(calls, 'a') as file:
        print(kept, file=file)
    return kept
";

#[test]
fn a_function_decides_once_which_groups_are_trained_on() {
    if !has_python() {
        return;
    }
    let method = Method::new(FILTER);
    let file = method.folder.path().join("method.py");
    let filter = format!("stage.rl.algorithm.filter={{function='{}:keep'}}", file.display());
    let overrides = ["run.checkpoint_every=100", "stage.rl.steps=4", &filter];
    let error = method.train(&overrides).unwrap_err().to_string();
    assert!(error.contains("LookupError: not yet"), "{error}");
    std::fs::write(method.folder.path().join("go"), "").unwrap();
    let run = method.config(&overrides).run_directory();
    resume(&run, ResumeOptions::default()).unwrap();

    let calls = std::fs::read_to_string(method.folder.path().join("calls")).unwrap();
    let kept = calls.lines().filter(|line| line.ends_with("True")).count();
    // A group that an earlier attempt has kept is not decided again, and one that it has replaced does not come back.
    assert_eq!(kept, 4 * 6, "{calls}");
    assert!(calls.lines().count() > kept, "{calls}");
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let filtered = events.iter().any(|line| match &line.event {
        Event::Step { metrics } => metrics.get("filtered/function").is_some_and(|&groups| groups > 0.0),
        _ => false,
    });
    assert!(filtered);
}
