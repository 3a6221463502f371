//! Stages that learn from a teacher: they resume to the same bytes, come near their teachers, and refuse those that do not fit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_config::Config;
use rloom_run::{ResumeOptions, StopFlag};
use rloom_telemetry::{Event, EventLine, Observer, read_events};

use crate::learning::config;

const ARITHMETIC: &str = include_str!("../../../../recipes/arithmetic.toml");
const RECIPE: &str = include_str!("../../../../recipes/distill.toml");

/// Trains a teacher and returns its folder.
fn teacher(directory: &Path, overrides: &[&str]) -> PathBuf {
    let short = ["run.name=teacher", "stage.rl.steps=1", "eval.tasks=1", "stage.rl.groups_per_batch=1"];
    let config = config(ARITHMETIC, directory, &[&short[..], overrides].concat());
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let steps = config.stages[0].steps;
    config.run_directory().join(format!("checkpoints/warmup-step-{steps:06}"))
}

/// A tiny form of the recipe.
fn tiny(directory: &Path, teacher: &Path, name: &str, overrides: &[&str]) -> Config {
    let mut all = vec![format!("run.name={name}")];
    for stage in ["imitate", "correct"] {
        all.push(format!("stage.{stage}.teacher.path={}", teacher.display()));
        all.push(format!("stage.{stage}.steps=3"));
        all.push(format!("stage.{stage}.groups_per_batch=6"));
        all.push(format!("stage.{stage}.trainer.micro_batch_tokens=64"));
    }
    all.extend(
        ["model.new.layers=1", "model.new.hidden_size=32", "eval.tasks=1", "run.checkpoint_every=1"]
            .map(str::to_owned),
    );
    all.extend(overrides.iter().map(|&own| own.to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    config(RECIPE, directory, &all)
}

const SMALL: [&str; 4] = [
    "model.new.layers=1",
    "model.new.hidden_size=48",
    "stage.warmup.steps=3",
    "stage.warmup.groups_per_batch=4",
];

/// Metrics of each step of a stage.
fn steps(config: &Config, stage: &str) -> Vec<BTreeMap<String, f64>> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_step = |line: EventLine| match line.event {
        Event::Step { metrics } if line.stage == stage => Some(metrics),
        _ => None,
    };
    lines.into_iter().filter_map(of_step).collect()
}

/// Requests a stop after the first step of a stage.
struct StopEarly(&'static str, StopFlag);

impl Observer for StopEarly {
    fn observe(&mut self, line: &EventLine) {
        if line.stage == self.0 && matches!(line.event, Event::Step { .. }) && !self.1.after_this_step() {
            self.1.request();
        }
    }
}

fn weights(config: &Config, stage: &str) -> Vec<u8> {
    let last = config.run_directory().join(format!("checkpoints/{stage}-step-000003"));
    let files = ["model.safetensors", "trainer/optimizer.safetensors"];
    files.map(|file| std::fs::read(last.join(file)).unwrap()).concat()
}

/// Demonstrations, samples, a mixture of both, and the most probable tokens alone.
#[test]
fn stages_resume_to_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let teacher = teacher(directory.path(), &SMALL);
    let cases: [(&str, &'static str, &[&str], Option<f64>); 4] = [
        ("demonstrations", "imitate", &[], Some(0.0)),
        ("samples", "correct", &[], Some(1.0)),
        ("mixture", "correct", &["stage.correct.algorithm.distillation.on_policy_share=0.5"], None),
        (
            "top",
            "correct",
            &[
                "stage.correct.algorithm.distillation={kind='jensen_shannon',beta=0.3,top_k=4,on_policy_share=1.0}",
            ],
            Some(1.0),
        ),
    ];
    for (case, stage, overrides, share) in cases {
        let whole = tiny(directory.path(), &teacher, &format!("{case}-whole"), overrides);
        rloom_run::train(&whole, &mut (), &StopFlag::default()).unwrap();
        let broken = tiny(directory.path(), &teacher, &format!("{case}-broken"), overrides);
        let stop = StopFlag::default();
        let mut observer = StopEarly(stage, stop.clone());
        assert!(rloom_run::train(&broken, &mut observer, &stop).unwrap().interrupted);
        let options = ResumeOptions::default();
        rloom_run::resume(&broken.run_directory(), &broken, options, &mut (), &StopFlag::default()).unwrap();
        assert!(weights(&whole, stage) == weights(&broken, stage), "{case}: other weights after a resume");
        let (steps, again) = (steps(&whole, stage), steps(&broken, stage));
        assert_eq!(steps.len(), 3, "{case}");
        for (step, again) in steps.iter().zip(&again) {
            for name in ["loss", "teacher/divergence", "teacher/on_policy"] {
                assert_eq!(step[name].to_bits(), again[name].to_bits(), "{case}: {name}");
            }
            assert!(step["teacher/divergence"] > 0.0 && !step.contains_key("reward"), "{case}: {step:?}");
        }
        let shares: Vec<f64> = steps.iter().map(|step| step["teacher/on_policy"]).collect();
        match share {
            Some(share) => assert_eq!(shares, [share; 3], "{case}"),
            None => {
                let mean = shares.iter().sum::<f64>() / 3.0;
                assert!(mean > 0.1 && mean < 0.9, "{case}: {shares:?}");
            }
        }
    }
}

/// A stage that starts from its teacher has no loss, and leaves the weights as they are.
#[test]
fn a_student_that_equals_its_teacher_keeps_its_weights() {
    let directory = tempfile::tempdir().unwrap();
    let text = RECIPE.replace("[stage.teacher]\npath = \"runs/arithmetic/checkpoints/rl-step-000150\"", "");
    assert_ne!(text, RECIPE);
    let overrides = [
        "model.new.layers=1",
        "model.new.hidden_size=32",
        "eval.tasks=1",
        "stage.imitate.method=sft",
        "stage.imitate.steps=2",
        "stage.imitate.groups_per_batch=4",
        "stage.correct.teacher.stage=imitate",
        "stage.correct.steps=2",
        "stage.correct.groups_per_batch=4",
        "stage.correct.trainer.weight_decay=0.0",
    ];
    let config = config(&text, directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    for step in steps(&config, "correct") {
        assert_eq!((step["loss"], step["grad_norm"]), (0.0, 0.0));
    }
    let of = |name: &str| {
        std::fs::read(config.run_directory().join("checkpoints").join(name).join("model.safetensors"))
            .unwrap()
    };
    assert!(of("imitate-step-000002") == of("correct-step-000002"));
}

/// A KL in the reward is measured to the teacher, not to the start of the stage.
#[test]
fn a_kl_in_the_reward_is_measured_to_the_teacher() {
    let directory = tempfile::tempdir().unwrap();
    let teacher = teacher(directory.path(), &SMALL);
    let run = |name: &str, more: &[&str]| {
        let name = format!("run.name={name}");
        let overrides = [
            &[
                name.as_str(),
                "model.new.layers=1",
                "model.new.hidden_size=32",
                "eval.tasks=1",
                "stage.warmup.steps=2",
                "stage.warmup.groups_per_batch=4",
                "stage.rl.steps=2",
                "stage.rl.groups_per_batch=4",
                "stage.rl.method=reinforce_pp",
                "stage.rl.algorithm={advantage={gamma=0.0},whiten=false,kl={coef=1.0}}",
                "reward.components=[{kind='numeric',weight=0.0}]",
            ][..],
            more,
        ]
        .concat();
        let config = config(ARITHMETIC, directory.path(), &overrides);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        steps(&config, "rl")
    };
    let own = run("own", &[]);
    assert!(own[0]["kl"].abs() < 1e-12, "the student has not moved from its start: {}", own[0]["kl"]);
    let path = format!("stage.rl.teacher.path={}", teacher.display());
    let taught = run("taught", &[&path]);
    assert!(taught[0]["kl"] > 0.01, "{}", taught[0]["kl"]);
    assert!(taught[0]["grad_norm"] > 0.0);
}

#[test]
fn teachers_with_other_tokens_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, alphabet, what) in [
        ("more", "0123456789+=# *", " token ids, the run's model "),
        ("others", "+=0123456789 #", " is \"+\" there and \"0\" in the run's model"),
    ] {
        let alphabet = format!("tokenizer.alphabet='{alphabet}'");
        let name = format!("run.name={name}");
        let teacher = teacher(directory.path(), &[&SMALL[..], &[&alphabet, &name]].concat());
        let tokens = ["tokenizer.alphabet='0123456789+=# '"];
        let student = tiny(directory.path(), &teacher, "student", &tokens);
        let error = rloom_run::train(&student, &mut (), &StopFlag::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("stage `imitate` cannot learn from the teacher"), "{text}");
        assert!(text.contains(what), "{text}");
        // RunError::OtherTeacher
        let hint = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(hint.contains("choose a teacher with the tokenizer of the run's model"), "{hint}");
        std::fs::remove_dir_all(student.run_directory()).unwrap();
    }
    // As the hint says.
    let teacher = teacher(directory.path(), &SMALL);
    let student = tiny(directory.path(), &teacher, "student", &[]);
    rloom_run::train(&student, &mut (), &StopFlag::default()).unwrap();
}
