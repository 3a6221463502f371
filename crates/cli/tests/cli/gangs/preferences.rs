//! Stages that learn from preferences and labels, on ranks and on the embedded engine.

use std::collections::BTreeMap;

use rloom_model::StoredTensors;
use rloom_telemetry::{Event, read_events};

use super::run::{Run, succeeded};

/// A warm-up in this process, then pairs, labels, an anchor that is a running mean, a loss over the whole step, reward models of
/// completions and of steps, and a teacher, each from the same weights.
const RECIPE: &str = r#"
[run]
name = "gang"
seed = 3
threads = 1
checkpoint_every = 100
keep_last = 100

[model.new]
layers = 2
hidden_size = 32
heads = 2
intermediate_size = 48
max_positions = 64
initializer_range = 0.2

[data]
generator = "arithmetic"
operations = ["+"]
style = "mixed"

[tokenizer]
alphabet = "0123456789+=# \n"

[[stage]]
name = "warmup"
method = "sft"
steps = 2
groups_per_batch = 8

[stage.trainer]
backend = "embedded"
learning_rate = 1e-3
STAGES"#;

const PAIRS: &str = "rows = \"preferences\"\nworked_share = 0.7";
const LABELS: &str = "rows = \"labels\"\nworked_share = 0.7";
const LABELLED_STEPS: &str = "path = \"steps.jsonl\"\neval_rows = 4";

const VALIDATION: &str = "[stage.validation]\nevery = 2\nrows = 13\n";

/// Methods with the rows that they learn from, and further settings; the reference of one is scored before the first step.
const STAGES: [(&str, &str, &str); 7] = [
    ("dpo", PAIRS, ""),
    ("kto", LABELS, "reference = { cache = \"scores\" }"),
    ("bco", LABELS, ""),
    ("aot", PAIRS, ""),
    ("reward_model", PAIRS, VALIDATION),
    ("prm", LABELLED_STEPS, VALIDATION),
    ("distill", "", "[stage.teacher]\nstage = \"dpo\""),
];
const STEPS: usize = 3;
/// Versions of the reward models that are validated: 0, 2 and 3 of two models.
const VALIDATIONS: usize = 6;

/// Largest distance of weights after the steps, relative to the distance that they moved.
const WEIGHTS: f64 = 1e-3;
/// Largest relative difference of a metric.
const METRICS: f64 = 1e-4;

type Tensors = BTreeMap<String, Vec<f32>>;

/// Metrics of the steps and validations of each stage, and the weights at its end.
struct Trained {
    metrics: Vec<(String, BTreeMap<String, f64>)>,
    weights: BTreeMap<String, Tensors>,
}

fn recipe() -> String {
    let of_stage = |(method, data, more): &(&str, &str, &str)| {
        format!(
            "[[stage]]\nname = \"{method}\"\nmethod = \"{method}\"\nfrom = \"warmup\"\nsteps = {STEPS}\n\
             groups_per_batch = 6\n[stage.data]\n{data}\n[stage.trainer]\n\
             learning_rate = 1e-3\nmicro_batch_tokens = 64\n{more}\n"
        )
    };
    RECIPE.replace("STAGES", &STAGES.iter().map(of_stage).collect::<String>())
}

/// Sums whose steps are right or wrong; not as many right as wrong ones.
fn labelled_steps() -> String {
    let row = |n: usize| {
        let (a, b) = (n % 10, n / 3 % 10);
        let (found, is_right) = (a + b + usize::from(n.is_multiple_of(3)), !n.is_multiple_of(3));
        format!(
            "{{\"prompt\": \"{a}+{b}=\", \"completions\": [\"{found}\", \"#{b}\"], \"labels\": [{is_right}, true]}}\n"
        )
    };
    (0..24).map(row).collect()
}

fn train(name: &str, settings: &[&str]) -> Trained {
    let run = Run::new(name);
    run.sandbox.write("gang.toml", &recipe());
    run.sandbox.write("steps.jsonl", &labelled_steps());
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = ["train", "gang.toml", "--quiet"].into_iter().chain(settings).collect();
    succeeded(&run.finish(run.start(&arguments)));
    run.check_ended();
    let folder = run.sandbox.path("runs/gang");
    let lines = read_events(&folder.join("events.jsonl")).unwrap();
    let metrics = lines.into_iter().filter_map(|line| match line.event {
        Event::Step { metrics } | Event::Validation { metrics, .. } => Some((line.stage.clone(), metrics)),
        _ => None,
    });
    let weights = |checkpoint: String| -> Tensors {
        let tensors = StoredTensors::open(&folder.join("checkpoints").join(checkpoint)).unwrap();
        tensors.names().map(|name| (name.to_owned(), tensors.read(name).unwrap())).collect()
    };
    let ends = STAGES.map(|(stage, ..)| (stage.to_owned(), weights(format!("{stage}-step-{STEPS:06}"))));
    let start = ("warmup".to_owned(), weights("warmup-step-000002".to_owned()));
    Trained { metrics: metrics.collect(), weights: ends.into_iter().chain([start]).collect() }
}

/// Distance of the weights of a stage's end from others. A head that those lack began at zero.
fn distance(a: &Tensors, b: &Tensors) -> f64 {
    let of_tensor = |(name, own): (&String, &Vec<f32>)| {
        let zeros = vec![0.0; own.len()];
        let other = b.get(name).unwrap_or(&zeros);
        assert_eq!(own.len(), other.len(), "{name}");
        own.iter().zip(other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>()
    };
    a.iter().map(of_tensor).sum::<f64>().sqrt()
}

/// True for what training computes; times and the tokens of shared prompts are properties of an engine.
fn is_computed(name: &str) -> bool {
    !["time/", "tokens", "memory/"].iter().any(|prefix| name.starts_with(prefix))
}

/// Metrics and weights are those of the embedded engine.
fn train_as_the_embedded_engine(ranks: &str) {
    let python = format!("trainer.python={}", std::env::var("RLOOM_TEST_PYTHON").unwrap());
    let expected = train(&format!("embedded-{ranks}"), &[]);
    assert_eq!(expected.metrics.len(), 2 + STAGES.len() * STEPS + VALIDATIONS);
    let found = train(&format!("preferences-{ranks}"), &["trainer.backend=torch", ranks, &python]);
    assert_eq!(found.weights["warmup"], expected.weights["warmup"]);
    for (stage, ..) in STAGES {
        let [own, end, start] =
            [&found.weights[stage], &expected.weights[stage], &expected.weights["warmup"]];
        assert!(own.keys().eq(end.keys()), "{stage}, {ranks}");
        let (off, moved) = (distance(own, end), distance(end, start));
        println!("{stage}, {ranks}: off by {:.1e} of the update", off / moved);
        assert!(moved > 0.0 && off <= WEIGHTS * moved, "{stage}, {ranks}: off by {off:e} of {moved:e}");
    }
    assert_eq!(found.metrics.len(), expected.metrics.len());
    for ((stage, own), (_, expected)) in found.metrics.iter().zip(&expected.metrics) {
        for (name, value) in expected.iter().filter(|(name, _)| is_computed(name)) {
            let own = *own.get(name).unwrap_or_else(|| panic!("{stage}, {ranks}: no {name}"));
            let off = (own - value).abs() / value.abs().max(1e-2);
            assert!(off <= METRICS, "{stage}, {ranks}: {name} is {own}, not {value}");
        }
    }
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn preferences_train_two_ranks_as_the_embedded_engine() {
    train_as_the_embedded_engine("trainer.ranks=2");
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn preferences_train_one_rank_as_the_embedded_engine() {
    train_as_the_embedded_engine("trainer.ranks=1");
}
