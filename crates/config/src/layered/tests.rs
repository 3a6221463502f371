//! The reader on settings of the tests.

use std::fmt::Write as _;

use rloom_core::field_names;
use serde::Deserialize;

use super::load::Layers;
use super::merge::Choice;
use super::read::{Context, read};
use super::renames::Renames;
use super::tree::{Node, Value};
use crate::problem::{Code, ConfigErrors};

const CHOICES: &[Choice] = &[Choice {
    table: "model",
    keys: &["path", "new"],
    by_value: &["path"],
    default: None,
    common: Vec::new,
}];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Optimizer {
    learning_rate: f64,
    warmup_steps: usize,
    schedule: Schedule,
    nesterov: bool,
    betas: Vec<f64>,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            warmup_steps: 0,
            schedule: Schedule::Constant,
            nesterov: false,
            betas: vec![0.9, 0.95],
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Schedule {
    Constant,
    Cosine,
    Steps { every: usize, factor: f64 },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "compared as text")]
struct New {
    layers: usize,
    #[serde(default)]
    width: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Model {
    path: Option<String>,
    revision: Option<String>,
    new: Option<New>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "compared as text")]
struct Stage {
    name: String,
    steps: u64,
    #[serde(default)]
    optimizer: Optimizer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Root {
    name: String,
    seed: u64,
    model: Model,
    optimizer: Optimizer,
    stage: Vec<Stage>,
}

fn load(files: &[(&str, &str)], overrides: &[&str]) -> Result<Root, ConfigErrors> {
    let mut layers = Layers::new(CHOICES);
    for (name, text) in files {
        layers.add_text(name.into(), (*text).to_owned());
    }
    for text in overrides {
        layers.add_override(text);
    }
    let Layers { sources, root, mut problems, .. } = layers;
    if problems.iter().any(|p| p.code == Code::Syntax) {
        return Err(ConfigErrors::new(sources, problems));
    }
    let origin = super::source::Origin { source: sources.first(), start: 0, end: 0 };
    let node = Node { value: Value::Table(root), origin };
    let keys: Vec<_> =
        [("optimizer", field_names::<Optimizer>()), ("model.new", field_names::<New>())].into();
    let value = read::<Root>(
        &node,
        Context {
            sources: &sources,
            path: "",
            layers: &[],
            also: &[],
            sections: &keys,
            renames: Renames::NONE,
        },
        &mut problems,
    );
    match value {
        Some(value) if problems.is_empty() => Ok(value),
        _ => Err(ConfigErrors::new(sources, problems)),
    }
}

/// Files, overrides and the result as one text.
fn transcript(files: &[(&str, &str)], overrides: &[&str]) -> String {
    let mut text = String::new();
    for (name, content) in files {
        let _ = writeln!(text, "=== {name}\n{}", content.trim());
    }
    for argument in overrides {
        let _ = writeln!(text, "=== --set {argument}");
    }
    text.push_str("=== result\n");
    match load(files, overrides) {
        Ok(root) => {
            let _ = write!(text, "{root:#?}");
        }
        Err(errors) => text.push_str(&errors.render(false)),
    }
    text
}

fn compare(name: &str, files: &[(&str, &str)], overrides: &[&str]) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, transcript(files, overrides));
    });
}

#[test]
fn later_layers_win() {
    let base = "name = 'base'\nseed = 3\n[optimizer]\nlearning_rate = 1e-2\nbetas = [0.5, 0.6, 0.7]\n\
                [[stage]]\nname = 'warm'\nsteps = 5\n[[stage]]\nname = 'rl'\nsteps = 7\n[stage.optimizer]\nnesterov = true\n";
    let over = "name = 'over'\n[optimizer]\nbetas = [0.1]\n[[stage]]\nname = 'rl'\noptimizer.warmup_steps = 4\n\
                [[stage]]\nname = 'last'\nsteps = 1\n";
    let sets = ["stage.warm.steps=50", "optimizer.learning_rate=1e-5", "name=set by hand"];
    compare("later_layers_win", &[("base.toml", base), ("over.toml", over)], &sets);
}

#[test]
fn stages_are_addressed_by_name() {
    let base = "[[stage]]\nname = 'warm'\nsteps = 5\n";
    let by_table = "[stage.warm]\nsteps = 6\n[stage.worm]\nsteps = 7\n";
    compare(
        "stages_by_name",
        &[("base.toml", base), ("over.toml", by_table)],
        &["stage.rl.steps=3", "stage.warm=3"],
    );
}

#[test]
fn another_alternative_drops_the_keys_of_the_first() {
    let root = load(&[("a.toml", "model.path = 'x'"), ("b.toml", "[model.new]\nlayers = 2")], &[]).unwrap();
    assert!(root.model.path.is_none() && root.model.new.is_some());
    let root = load(&[("a.toml", "[model.new]\nlayers = 2"), ("b.toml", "model.path = 'x'")], &[]).unwrap();
    assert!(root.model.path.is_some() && root.model.new.is_none());
    let root = load(&[("a.toml", "[model.new]\nlayers = 2")], &["model.new.width=8"]).unwrap();
    assert_eq!(root.model.new.and_then(|n| n.width), Some(8));
    let base = ("a.toml", "model.path = 'x'\nmodel.revision = 'r'");
    assert!(
        load(&[base], &["model.path=x"]).unwrap().model.revision.is_some(),
        "the same alternative keeps the other keys"
    );
    assert!(load(&[base], &["model.path=y"]).unwrap().model.revision.is_none());
    let root = load(&[("a.toml", "model.path = 'x'\n[model.new]\nlayers = 2")], &[]).unwrap();
    assert!(root.model.path.is_some() && root.model.new.is_some(), "both in one file are kept");
}

#[test]
fn all_errors_of_a_file_are_reported() {
    let text = "\
name = 7
sede = 1

[optimizer]
lerning_rate = 1e-5      # misspelt
learning_rate = \"1e-5\"
warmup_steps = 10.0
schedule = \"cosin\"
nesterov = \"true\"
betas = 0.9
layers = 3
quite_wrong = 1

[model.new]
width = -1

[[stage]]
name = \"warm\"

[[stage]]
name = \"rl\"
steps = -3
optimizer.betas = [0.9, \"x\"]
";
    compare("every_mistake", &[("recipe.toml", text)], &[]);
}

#[test]
fn errors_in_overrides_point_into_the_argument() {
    let base = "[[stage]]\nname = 'rl'\nsteps = 5\n";
    let sets = [
        "optimizer.lerning_rate=1e-5",
        "optimizer.warmup_steps=ten",
        "stage.rl.step=20",
        "stage.lr.steps=20",
    ];
    compare("mistakes_in_overrides", &[("base.toml", base)], &sets);
    let sets = ["optimizer.betas=[0.9", "optimizer.nesterov", "seed=", "optimizer..x=1"];
    compare("syntax_of_overrides", &[("base.toml", base)], &sets);
}

#[test]
fn unquoted_overrides_are_strings_for_settings_that_take_strings() {
    for (given, name) in
        [("name=7", "7"), ("name=true", "true"), ("name=a b=c", "a b=c"), ("name=\"7\"", "7")]
    {
        assert_eq!(load(&[("a.toml", "")], &[given]).unwrap().name, name, "{given}");
    }
}

#[test]
fn syntax_errors_have_an_origin() {
    compare(
        "syntax",
        &[("recipe.toml", "name = \n[optimizer\nlearning_rate = 1e-5\nlearning_rate = 2\n")],
        &[],
    );
    compare(
        "syntax_and_duplicates",
        &[("recipe.toml", "seed = 99999999999999999999\nname = 'a'\nname = 'b'")],
        &[],
    );
}

#[test]
fn variants_with_settings_keep_their_origins() {
    let good = load(&[("a.toml", "[optimizer.schedule.steps]\nevery = 5\nfactor = 0.5")], &[]).unwrap();
    assert!(matches!(good.optimizer.schedule, Schedule::Steps { every: 5, factor } if factor == 0.5));
    let wrong = "[optimizer.schedule.steps]\nevry = 5\nfactor = \"x\"\n";
    compare("variant", &[("recipe.toml", wrong)], &[]);
    compare("variant_without_settings", &[("recipe.toml", "optimizer.schedule = 'steps'")], &[]);
    compare("variant_misspelt", &[("recipe.toml", "[optimizer.schedule.step]\nevery = 1")], &[]);
}
