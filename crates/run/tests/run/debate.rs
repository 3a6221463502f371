//! Debaters are right more often after training by their credit, and less often if the reward is flipped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::Path;

use rloom_config::Config;
use rloom_run::StopFlag;
use rloom_telemetry::{Event, read_events};

use crate::learning::{SIGNIFICANT, config, z};

const RECIPE: &str = include_str!("../../../../recipes/debate.toml");

/// Sums of two digits: every pair is asked eight times in an evaluation.
const ASKED: usize = 8 * 81;

/// Writes the data of the recipe with sums of two digits. Half of the demonstrated answers are one too large or too small, so that
/// a warmed-up debater is right on about half of the sums and has something to learn.
fn write_rows(directory: &Path) {
    let (mut warmup, mut tasks) = (String::new(), String::new());
    for (a, b) in (1..10).flat_map(|a| (1..10).map(move |b| (a, b))) {
        let right: i32 = a + b;
        writeln!(tasks, r#"{{"prompt": "{a}+{b}=", "answer": "{right}"}}"#).unwrap();
        for case in 0..32 {
            // Bits of `case`: whether the demonstration, the own and two other answers are right, and whether there was a debate.
            let wrong = right + if (a + case) % 3 == 0 { 1 } else { -1 };
            let answer = |bit: i32| if case >> bit & 1 == 0 { right } else { wrong };
            let debate =
                if case < 16 { String::new() } else { format!("{}<{},{}?", answer(1), answer(2), answer(3)) };
            writeln!(
                warmup,
                r#"{{"prompt": "{a}+{b}={debate}", "answer": "{right}", "demonstration": "{}"}}"#,
                answer(0)
            )
            .unwrap();
        }
    }
    std::fs::write(directory.join("debate-warmup.jsonl"), warmup).unwrap();
    std::fs::write(directory.join("debate-train.jsonl"), &tasks).unwrap();
    std::fs::write(directory.join("debate-eval.jsonl"), tasks.repeat(8)).unwrap();
}

/// Sampled accuracy of the debate at the first and the last evaluation of stage `rl`.
fn accuracies(config: &Config) -> [f64; 2] {
    rloom_run::train(config, &mut (), &StopFlag::default()).unwrap();
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let found: Vec<f64> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Evaluation { metrics, tasks, .. } if line.stage == "rl" => {
                assert_eq!(*tasks, ASKED as u64);
                Some(metrics["eval/pass@1"])
            }
            _ => None,
        })
        .collect();
    [found[0], found[found.len() - 1]]
}

#[test]
fn debaters_are_right_more_often_unless_the_reward_is_flipped() {
    let directory = tempfile::tempdir().unwrap();
    write_rows(directory.path());
    let recipe = RECIPE.replace("\"debate-", &format!("\"{}/debate-", directory.path().display()));
    let tasks = format!("eval.tasks={ASKED}");
    let short = [
        "stage.warmup.steps=150",
        "stage.warmup.eval_every=0",
        "stage.rl.trainer.learning_rate=5e-4",
        "stage.rl.trainer.warmup_steps=3",
        "eval.every=1000",
        "eval.sets=[]",
        &tasks,
    ];
    let learn = |overrides: &[&str]| {
        accuracies(&config(&recipe, directory.path(), &[&short[..], overrides].concat()))
    };
    let [before, after] = learn(&["run.name=right", "stage.rl.steps=25"]);
    assert!(z(before, after, ASKED as f64) > SIGNIFICANT, "{before} → {after}");
    let wrong = "reward.components=[{kind='exact',weight=-1.0}]";
    let [start, end] = learn(&["run.name=wrong", "stage.rl.steps=10", wrong]);
    assert_eq!(start, before, "the warm start is the same");
    assert!(z(start, end, ASKED as f64) < -SIGNIFICANT, "with the opposite reward: {start} → {end}");
}
