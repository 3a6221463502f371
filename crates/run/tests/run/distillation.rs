//! Stages that learn from a teacher: they resume to the same bytes, come near their teachers, and refuse those that do not fit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use rloom_config::Config;
use rloom_model::{GenerationConfig, Model, NewModel};
use rloom_run::{ResumeOptions, StopFlag};
use rloom_telemetry::{Event, EventLine, Observer, read_events};
use rloom_text::Tokenizer;

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

/// Source of the teacher in the recipe.
const TEACHER: &str = "path = \"runs/arithmetic/checkpoints/rl-step-000150\"";

/// A tiny form of the recipe with a teacher in a folder.
fn tiny(directory: &Path, teacher: &Path, name: &str, overrides: &[&str]) -> Config {
    tiny_from(directory, &format!("path = '{}'", teacher.display()), name, overrides)
}

/// A tiny form of the recipe with this source of the teacher.
fn tiny_from(directory: &Path, teacher: &str, name: &str, overrides: &[&str]) -> Config {
    assert_eq!(RECIPE.matches(TEACHER).count(), 2);
    let mut all = vec![format!("run.name={name}")];
    for stage in ["imitate", "correct"] {
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
    config(&RECIPE.replace(TEACHER, teacher), directory, &all)
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

/// An inference server whose teacher says a digit after each token with fixed probabilities.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("url = 'http://{}'", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || while answer(stream.as_ref().unwrap()).is_some() {});
        }
    });
    url
}

/// Answers one request of a connection; `None` at its end.
fn answer(stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut path, mut length) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let lower = line.trim().to_lowercase();
        match lower.strip_prefix("content-length:") {
            Some(bytes) => length = bytes.trim().parse().unwrap(),
            None if lower.is_empty() => break,
            None if path.is_empty() => path = lower,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let text = if path.contains("/v1/models") {
        serde_json::json!({ "data": [{ "id": "teacher" }] })
    } else {
        let request: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let tokens: Vec<u64> = serde_json::from_value(request["prompt"].clone()).unwrap();
        let k = request["prompt_logprobs"].as_u64().unwrap();
        let entry = |position: usize| {
            let top = (0..k).map(|rank| {
                let logprob = (0.6 * 0.4_f64.powi(i32::try_from(rank).unwrap())).ln();
                (((tokens[position - 1] + rank) % 10).to_string(), serde_json::json!({ "logprob": logprob }))
            });
            serde_json::Value::Object(top.collect())
        };
        let all = std::iter::once(serde_json::Value::Null).chain((1..tokens.len()).map(entry));
        serde_json::json!({ "choices": [{ "prompt_logprobs": all.collect::<Vec<_>>() }] })
    };
    let text = text.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    (&mut &*stream).write_all(format!("{head}{text}").as_bytes()).ok()
}

/// Name, source of the teacher, stage that is interrupted, overrides, and the expected share of samples if it is exact.
type Case<'a> = (&'a str, &'a str, &'static str, &'a [&'a str], Option<f64>);

/// Demonstrations, samples, a mixture of both, the most probable tokens alone, and those of a server.
#[test]
fn stages_resume_to_the_same_bytes() {
    const TOP: &str =
        "stage.correct.algorithm.distillation={kind='jensen_shannon',beta=0.3,top_k=4,on_policy_share=1.0}";
    let directory = tempfile::tempdir().unwrap();
    let folder = format!("path = '{}'", teacher(directory.path(), &SMALL).display());
    let server = server();
    let cases: [Case<'_>; 5] = [
        ("demonstrations", &folder, "imitate", &[], Some(0.0)),
        ("samples", &folder, "correct", &[], Some(1.0)),
        ("mixture", &folder, "correct", &["stage.correct.algorithm.distillation.on_policy_share=0.5"], None),
        ("top", &folder, "correct", &[TOP], Some(1.0)),
        ("server", &server, "correct", &["stage.imitate.algorithm.distillation.top_k=3", TOP], Some(1.0)),
    ];
    for (case, teacher, stage, overrides, share) in cases {
        let whole = tiny_from(directory.path(), teacher, &format!("{case}-whole"), overrides);
        rloom_run::train(&whole, &mut (), &StopFlag::default()).unwrap();
        let broken = tiny_from(directory.path(), teacher, &format!("{case}-broken"), overrides);
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
        if let Some(share) = share {
            assert_eq!(shares, [share; 3], "{case}");
        } else {
            let mean = shares.iter().sum::<f64>() / 3.0;
            assert!(mean > 0.1 && mean < 0.9, "{case}: {shares:?}");
        }
    }
}

/// A head that is padded to another size than the student's has no further tokens: its teacher is as good as another one.
#[test]
fn a_teacher_with_a_padded_head_has_the_same_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let teacher = teacher(directory.path(), &SMALL);
    let tokenizer = Tokenizer::load(&teacher).unwrap();
    let padded = directory.path().join("padded");
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 16, "max_positions": 64,
        "initializer_range": 0.5,
    }))
    .unwrap();
    let model = Model::init(&new.config(tokenizer.vocab_size() + 5).unwrap(), 3);
    std::fs::create_dir(&padded).unwrap();
    let generation = GenerationConfig::load(&teacher, Model::load(&teacher).unwrap().config()).unwrap();
    model.save(&padded, &generation).unwrap();
    tokenizer.save(&padded).unwrap();
    for (name, overrides) in [
        ("whole", &[][..]),
        (
            "top",
            &["stage.correct.algorithm.distillation.top_k=9", "stage.imitate.algorithm.distillation.top_k=9"],
        ),
    ] {
        let student = tiny(directory.path(), &padded, name, overrides);
        rloom_run::train(&student, &mut (), &StopFlag::default()).unwrap();
        for step in steps(&student, "imitate").iter().chain(&steps(&student, "correct")) {
            assert!(step["teacher/divergence"] > 0.1, "{step:?}");
        }
    }
}

/// A stage that starts from its teacher has no loss, and leaves the weights as they are.
#[test]
fn a_student_that_equals_its_teacher_keeps_its_weights() {
    let directory = tempfile::tempdir().unwrap();
    let text = RECIPE.replace(&format!("[stage.teacher]\n{TEACHER}"), "");
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
                "reward.components=[{kind='numeric',weight=0.0}]",
            ][..],
            more,
        ]
        .concat();
        let config = config(ARITHMETIC, directory.path(), &overrides);
        rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
        steps(&config, "rl")
    };
    let reward = [
        "stage.rl.method=reinforce_pp",
        "stage.rl.algorithm={advantage={gamma=0.0},whiten=false,kl={coef=1.0}}",
    ];
    let own = run("own", &reward);
    assert!(own[0]["kl"].abs() < 1e-12, "the student has not moved from its start: {}", own[0]["kl"]);
    let path = format!("stage.rl.teacher.path={}", teacher.display());
    let taught = run("taught", &[reward[0], reward[1], &path]);
    assert!(taught[0]["kl"] > 0.01, "{}", taught[0]["kl"]);
    assert!(taught[0]["grad_norm"] > 0.0);
    // In the loss.
    let penalised = ["stage.rl.method=grpo", "stage.rl.algorithm={group_size=4,kl={coef=1.0}}", &path];
    let penalised = run("penalised", &penalised);
    assert!(penalised[0]["kl"] > 0.01 && penalised[0]["grad_norm"] > 0.0, "{:?}", penalised[0]);
}

#[test]
fn teachers_with_other_tokens_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, alphabet, what) in [
        ("more", "0123456789+=# *", " is \"*\" there and "),
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

/// Settings of the shortened recipe: sums of two digits.
const SHORT: [&str; 5] = [
    "data.min_digits=2",
    "data.max_digits=2",
    "stage.imitate.steps=360",
    "stage.correct.steps=40",
    "stage.imitate.eval_every=0",
];

/// Accuracy on held-out tasks at the end of a stage.
fn accuracy(config: &Config, stage: &str) -> f64 {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_stage = |line: &EventLine| match &line.event {
        Event::Evaluation { metrics, .. } if line.stage == stage => Some(metrics["eval/accuracy"]),
        _ => None,
    };
    lines.iter().filter_map(of_stage).next_back().unwrap()
}

/// The shortened recipe: a student of half the size learns what its teacher knows. From a teacher that has learned nothing it learns
/// nothing, though the demonstrations are the same.
#[test]
fn a_student_of_half_the_size_learns_from_its_teacher() {
    let directory = tempfile::tempdir().unwrap();
    let train = |config: &Config| rloom_run::train(config, &mut (), &StopFlag::default()).unwrap();
    let teacher = |steps: &str| {
        let (name, steps) = (format!("run.name=teacher-{steps}"), format!("stage.warmup.steps={steps}"));
        let more =
            ["data.worked_share=1.0", "stage.rl.steps=1", "stage.rl.groups_per_batch=1", "eval.every=1000"];
        let config = config(
            ARITHMETIC,
            directory.path(),
            &[&[name.as_str(), &steps][..], &SHORT[..2], &more].concat(),
        );
        train(&config);
        let last =
            config.run_directory().join(format!("checkpoints/warmup-step-{:06}", config.stages[0].steps));
        (accuracy(&config, "warmup"), format!("path = '{}'", last.display()))
    };
    let student = |name: &str, teacher: &str, more: &[&str]| {
        let name = format!("run.name={name}");
        let text = RECIPE.replace(TEACHER, teacher);
        let overrides = [&[name.as_str(), "eval.every=1000"][..], &SHORT, more].concat();
        let config = config(&text, directory.path(), &overrides);
        train(&config);
        accuracy(&config, "correct")
    };
    let (of_teacher, folder) = teacher("540");
    assert!(of_teacher > 0.85, "{of_teacher}");
    let of_student = student("student", &folder, &[]);
    assert!(of_student > 0.65, "{of_student} after {of_teacher}");
    let (_, untrained) = teacher("1");
    // The second stage corrects what the first one has taught: nothing.
    let of_other = student("other", &untrained, &["stage.correct.steps=1"]);
    assert!(of_other < 0.2, "{of_other}");
}
