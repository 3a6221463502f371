//! Composes typed sections from the merged tree, each with the origins of its keys.
//!
//! `[data]`, `[environment]`, `[sampling]`, `[reward]`, `[trainer]`, `[rollout]`, `[schedule]`, `[domains]` and `[validation]` at the root
//! are shared by all stages; a stage's table of the same name overrides single keys. Evaluation defaults to the settings of the
//! last stage.

use std::collections::BTreeMap;

use rloom_algo::{AdvantageKind, DistillationKind, Kind, LossKind, Method, PreferenceKind};
use rloom_cluster::ClusterSettings;
use rloom_core::field_names;
use rloom_data::DataSettings;
use rloom_engine::{RolloutEngineSettings, SamplingSettings, TrainSettings};
use rloom_env::EnvironmentSettings;
use rloom_model::{NewModel, OptimizerSettings};
use rloom_reward::RewardSettings;
use rloom_sched::ScheduleSettings;
use serde::de::DeserializeOwned;

use crate::domains::DomainSettings;
use crate::keys::{EvalKeys, ModelKeys, RootKeys, StageKeys, TokenizerKeys};
use crate::layered::merge::{Choice, STAGES, merge_section};
use crate::layered::read::{Context, Layer, read};
use crate::layered::source::{Origin, Sources};
use crate::layered::suggest;
use crate::layered::tree::{Node, Table, Value};
use crate::policies::PolicySettings;
use crate::problem::{Code, Problem};
use crate::renamed::RENAMED;
use crate::section::{Section, empty};
use crate::settings::RunSettings;
use crate::teacher::TeacherSettings;
use crate::validation::ValidationSettings;

/// Tables that describe one of several alternatives.
pub(crate) const CHOICES: &[Choice] = &[
    Choice { keys: &["path", "new"], by_value: &[], ..choice("model") },
    Choice { keys: &["path", "generator", "sources"], by_value: &["generator"], ..choice("data") },
    choice("environment"),
    choice("loss"),
    choice("advantage"),
    choice("distillation"),
    Choice {
        keys: &["backend"],
        by_value: &["backend"],
        default: Some("embedded"),
        common: || [field_names::<OptimizerSettings>(), &TrainSettings::COMMON_KEYS].concat(),
        ..choice("trainer")
    },
    Choice {
        keys: &["engine"],
        by_value: &["engine"],
        default: Some("embedded"),
        common: || RolloutEngineSettings::COMMON_KEYS.to_vec(),
        ..choice("rollout")
    },
];

/// A table whose `kind` selects the alternative.
const fn choice(table: &'static str) -> Choice {
    Choice { table, keys: &["kind"], by_value: &["kind"], default: None, common: Vec::new }
}

/// Tables at the root that stages share.
pub(crate) const SHARED: [&str; 9] =
    ["data", "environment", "sampling", "reward", "trainer", "rollout", "schedule", "domains", "validation"];

/// Required keys of a stage.
const REQUIRED: [&str; 4] = ["name", "method", "steps", "groups_per_batch"];

/// The deserialised configuration before the checks.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) root: Section<()>,
    pub(crate) run: Section<RunSettings>,
    pub(crate) model: Section<ModelKeys>,
    pub(crate) tokenizer: Option<Section<TokenizerKeys>>,
    pub(crate) cluster: Option<Section<ClusterSettings>>,
    pub(crate) policies: BTreeMap<String, Section<PolicySettings>>,
    pub(crate) eval: Option<EvalDraft>,
    pub(crate) stages: Vec<StageDraft>,
}

#[derive(Debug)]
pub(crate) struct EvalDraft {
    pub(crate) keys: Section<EvalKeys>,
    pub(crate) sampling: Section<SamplingSettings>,
    pub(crate) data: Section<DataSettings>,
    pub(crate) environment: Section<EnvironmentSettings>,
    pub(crate) reward: Section<RewardSettings>,
    pub(crate) rollout: Section<RolloutEngineSettings>,
}

#[derive(Debug)]
pub(crate) struct StageDraft {
    pub(crate) keys: Section<StageKeys>,
    pub(crate) data: Section<DataSettings>,
    pub(crate) environment: Section<EnvironmentSettings>,
    pub(crate) optimizer: Section<OptimizerSettings>,
    pub(crate) trainer: Section<TrainSettings>,
    pub(crate) rollout: Option<RolloutDraft>,
    /// `None` without such a table, and in stages that sample.
    pub(crate) validation: Option<Section<ValidationSettings>>,
}

#[derive(Debug)]
pub(crate) struct RolloutDraft {
    pub(crate) sampling: Section<SamplingSettings>,
    pub(crate) reward: Section<RewardSettings>,
    pub(crate) engine: Section<RolloutEngineSettings>,
    pub(crate) schedule: Section<ScheduleSettings>,
    pub(crate) domains: Section<DomainSettings>,
}

/// Deserialises the merged tree; `None` if there are problems.
pub(crate) fn compose(root: &Table, sources: &Sources, problems: &mut Vec<Problem>) -> Option<Draft> {
    let whole = Origin { source: sources.first(), start: 0, end: 0 };
    let trainer = [field_names::<OptimizerSettings>(), field_names::<TrainSettings>()].concat();
    let sections: [(&str, &[&str]); 21] = [
        ("run", field_names::<RunSettings>()),
        ("model.new", field_names::<NewModel>()),
        ("tokenizer", field_names::<TokenizerKeys>()),
        ("cluster", field_names::<ClusterSettings>()),
        ("sampling", field_names::<SamplingSettings>()),
        ("trainer", &trainer),
        ("rollout", field_names::<RolloutEngineSettings>()),
        ("schedule", field_names::<ScheduleSettings>()),
        ("domains", field_names::<DomainSettings>()),
        ("validation", field_names::<ValidationSettings>()),
        ("policies", field_names::<PolicySettings>()),
        ("eval", field_names::<EvalKeys>()),
        ("stage", field_names::<StageKeys>()),
        ("stage.algorithm", field_names::<rloom_algo::AlgorithmSettings>()),
        ("stage.algorithm.advantage", AdvantageKind::all_keys().names()),
        ("stage.algorithm.loss", LossKind::all_keys().names()),
        ("stage.algorithm.preference", PreferenceKind::all_keys().names()),
        ("stage.algorithm.distillation", DistillationKind::all_keys().names()),
        ("stage.teacher", field_names::<TeacherSettings>()),
        ("data", field_names::<DataSettings>()),
        ("environment", field_names::<EnvironmentSettings>()),
    ];
    let node = Node { value: Value::Table(root.clone()), origin: whole };
    let mut composer = Composer { root, sources, sections: &sections, problems };
    composer.compose(node)
}

struct Composer<'a> {
    root: &'a Table,
    sources: &'a Sources,
    sections: &'a [(&'a str, &'a [&'a str])],
    problems: &'a mut Vec<Problem>,
}

/// A stage's table with its path.
struct StageTable<'a> {
    table: &'a Table,
    origin: Origin,
    path: String,
}

impl Composer<'_> {
    fn compose(&mut self, node: Node) -> Option<Draft> {
        let keys: Option<RootKeys> = self.read(&node, "", &[], &[]);
        let stage_nodes: &[Node] = match self.root.get(STAGES).map(|n| &n.value) {
            Some(Value::Array(nodes)) => nodes,
            _ => &[],
        };
        let tables: Vec<StageTable<'_>> = stage_nodes
            .iter()
            .enumerate()
            .filter_map(|(i, node)| {
                let table = node.as_table()?;
                let path = table
                    .string("name")
                    .map_or_else(|| format!("stage[{i}]"), |name| format!("stage.{name}"));
                Some(StageTable { table, origin: node.origin, path })
            })
            .collect();
        let stages: Vec<Option<StageDraft>> = tables.iter().map(|t| self.stage(t)).collect();
        let last = tables.last();
        let sampling =
            tables.iter().zip(&stages).rev().find(|(_, s)| s.as_ref().is_some_and(|s| s.rollout.is_some()));
        let sampling = sampling.map(|(table, _)| table);
        let eval = self.root.get("eval").map(|node| self.eval(node, last, sampling));
        let keys = keys?;
        let section = |name: &str| Section::<()> {
            value: (),
            node: self.root.get(name).cloned().unwrap_or_else(|| empty(node.origin)),
            layers: Vec::new(),
            path: name.to_owned(),
        };
        let run = section("run").with(keys.run);
        let model = section("model").with(keys.model);
        let tokenizer = keys.tokenizer.map(|t| section("tokenizer").with(t));
        let cluster = keys.cluster.map(|c| section("cluster").with(c));
        let of_root = self.root.get("policies").and_then(Node::as_table);
        let policies = keys.policies.into_iter().map(|(name, value)| {
            let own = of_root.and_then(|policies| policies.get(&name)).cloned();
            let own = own.unwrap_or_else(|| empty(node.origin));
            let section = Section { value, node: own, layers: Vec::new(), path: format!("policies.{name}") };
            (name, section)
        });
        let policies = policies.collect();
        let eval = match eval {
            Some(draft) => Some(draft?),
            None => None,
        };
        let stages = stages.into_iter().collect::<Option<Vec<_>>>()?;
        let root = Section { value: (), node, layers: Vec::new(), path: String::new() };
        Some(Draft { root, run, model, tokenizer, cluster, policies, eval, stages })
    }

    fn stage(&mut self, stage: &StageTable<'_>) -> Option<StageDraft> {
        let node = Node { value: Value::Table(stage.table.clone()), origin: stage.origin };
        let missing: Vec<&str> = REQUIRED.into_iter().filter(|key| !has_key(stage.table, key)).collect();
        if !missing.is_empty() {
            let message = format!("`{}` has no {}", stage.path, suggest::list(&missing));
            let every = format!("{} are required in every stage", suggest::list(&REQUIRED));
            self.problems.push(Problem::new(Code::MissingKey, message).at(stage.origin, "").hint(every));
        }
        let keys: Option<StageKeys> =
            if missing.is_empty() { self.read(&node, &stage.path, &[], &[]) } else { None };
        let data = self.section("data", &[stage], stage.origin);
        let environment = self.section("environment", &[stage], stage.origin);
        let (optimizer, trainer) = self.trainer(stage);
        let keys = keys?;
        // Held-out rows have no samples.
        let samples = keys.method.samples(&keys.algorithm);
        let has_validation = !samples && !self.layers("validation", &[stage]).is_empty();
        let validation = has_validation.then(|| self.section("validation", &[stage], stage.origin));
        let rollout = if samples {
            let sampling = self.section("sampling", &[stage], stage.origin);
            let has_reward = self.root.get("reward").is_some() || stage.table.get("reward").is_some();
            let reward = if keys.method == Method::Distill && !has_reward {
                let (node, path) = (empty(stage.origin), format!("{}.reward", stage.path));
                Some(Section { value: RewardSettings::none(), node, layers: Vec::new(), path })
            } else {
                self.section("reward", &[stage], stage.origin)
            };
            let engine = self.section("rollout", &[stage], stage.origin);
            let schedule = self.section("schedule", &[stage], stage.origin);
            let domains = self.section("domains", &[stage], stage.origin);
            Some(RolloutDraft {
                sampling: sampling?,
                reward: reward?,
                engine: engine?,
                schedule: schedule?,
                domains: domains?,
            })
        } else {
            None
        };
        let keys = Section { value: keys, node, layers: Vec::new(), path: stage.path.clone() };
        Some(StageDraft {
            keys,
            data: data?,
            environment: environment?,
            optimizer: optimizer?,
            trainer: trainer?,
            rollout,
            validation: match validation {
                Some(section) => Some(section?),
                None => None,
            },
        })
    }

    fn eval(
        &mut self,
        node: &Node,
        last: Option<&StageTable<'_>>,
        sampling: Option<&StageTable<'_>>,
    ) -> Option<EvalDraft> {
        let none = Table::default();
        let own = StageTable {
            table: node.as_table().unwrap_or(&none),
            origin: node.origin,
            path: "eval".to_owned(),
        };
        // Problems of these keys are reported with the root.
        let keys: EvalKeys = read(node, self.context("eval", &[], &[]), &mut Vec::new())?;
        let with = |stage| [stage, Some(&own)].into_iter().flatten().collect::<Vec<_>>();
        let data = self.section("data", &with(last), own.origin);
        let environment = self.section("environment", &with(last), own.origin);
        let reward = self.section("reward", &with(sampling), own.origin);
        let rollout = self.section("rollout", &with(sampling), own.origin);
        let sampling = self.eval_sampling(&with(sampling), keys.samples, own.origin);
        let keys = Section { value: keys, node: node.clone(), layers: Vec::new(), path: own.path };
        Some(EvalDraft {
            keys,
            sampling: sampling?,
            data: data?,
            environment: environment?,
            reward: reward?,
            rollout: rollout?,
        })
    }

    /// Length and stop strings of training, overridden by `[eval.sampling]`. Without samples the default is greedy.
    fn eval_sampling(
        &mut self,
        tables: &[&StageTable<'_>],
        samples: u32,
        fallback: Origin,
    ) -> Option<Section<SamplingSettings>> {
        let (own, stages) = tables.split_last()?;
        let mut layers = if stages.is_empty() { Vec::new() } else { self.layers("sampling", stages) };
        for layer in &mut layers {
            if let Value::Table(table) = &mut layer.node.value {
                table.entries.retain(|e| ["max_new_tokens", "stop"].contains(&e.key.as_str()));
            }
        }
        layers.extend(own_layer("sampling", own));
        let mut section: Section<SamplingSettings> =
            self.merged("sampling", layers, format!("{}.sampling", own.path), fallback)?;
        if samples == 0 && !section.is_set("temperature") {
            section.value.temperature = 0.0;
        }
        Some(section)
    }

    /// The two parts of `[trainer]`: the keys of the optimiser and those of the engine.
    fn trainer(
        &mut self,
        stage: &StageTable<'_>,
    ) -> (Option<Section<OptimizerSettings>>, Option<Section<TrainSettings>>) {
        let engine = field_names::<TrainSettings>();
        let path = format!("{}.trainer", stage.path);
        let layers = self.layers("trainer", &[stage]);
        let (of_engine, of_optimizer): (Vec<Layer>, Vec<Layer>) =
            layers.into_iter().map(|layer| halves(layer, engine)).unzip();
        let node = merge_layers("trainer", &of_optimizer, stage.origin);
        let optimizer = self.read(&node, &path, &of_optimizer, engine);
        let optimizer =
            optimizer.map(|value| Section { value, node, layers: of_optimizer, path: path.clone() });
        (optimizer, self.merged("trainer", of_engine, path, stage.origin))
    }

    /// The table `name` of the root, overridden by those of the given tables.
    fn section<T: DeserializeOwned>(
        &mut self,
        name: &str,
        tables: &[&StageTable<'_>],
        fallback: Origin,
    ) -> Option<Section<T>> {
        let path = tables.last().map_or_else(|| name.to_owned(), |t| format!("{}.{name}", t.path));
        self.merged(name, self.layers(name, tables), path, fallback)
    }

    fn merged<T: DeserializeOwned>(
        &mut self,
        name: &str,
        layers: Vec<Layer>,
        path: String,
        fallback: Origin,
    ) -> Option<Section<T>> {
        let node = merge_layers(name, &layers, fallback);
        let value = self.read(&node, &path, &layers, &[])?;
        Some(Section { value, node, layers, path })
    }

    fn layers(&self, name: &str, tables: &[&StageTable<'_>]) -> Vec<Layer> {
        let shared = self.root.get(name).map(|node| Layer { path: name.to_owned(), node: node.clone() });
        shared.into_iter().chain(tables.iter().filter_map(|t| own_layer(name, t))).collect()
    }

    fn context<'c>(&'c self, path: &'c str, layers: &'c [Layer], also: &'c [&'c str]) -> Context<'c> {
        Context { sources: self.sources, path, layers, also, sections: self.sections, renames: RENAMED }
    }

    fn read<T: DeserializeOwned>(
        &mut self,
        node: &Node,
        path: &str,
        layers: &[Layer],
        also: &[&str],
    ) -> Option<T> {
        let mut found = Vec::new();
        let value = read(node, self.context(path, layers, also), &mut found);
        // A value with a part removed is not the one in the file.
        let value = if found.is_empty() { value } else { None };
        self.problems.append(&mut found);
        value
    }
}

impl Section<()> {
    fn with<T>(self, value: T) -> Section<T> {
        Section { value, node: self.node, layers: self.layers, path: self.path }
    }
}

/// True if a table has a key, also under its former name, which is reported when the table is read.
fn has_key(stage: &Table, key: &str) -> bool {
    stage.get(key).is_some() || RENAMED.former_key(STAGES, key).is_some_and(|old| stage.get(old).is_some())
}

fn own_layer(name: &str, table: &StageTable<'_>) -> Option<Layer> {
    let node = table.table.get(name)?;
    Some(Layer { path: format!("{}.{name}", table.path), node: node.clone() })
}

/// Splits a layer into the keys that are among `keys` and the others. A value that is not a table stays in the second
/// part.
fn halves(layer: Layer, keys: &[&str]) -> (Layer, Layer) {
    let Value::Table(table) = &layer.node.value else {
        return (Layer { path: layer.path.clone(), node: empty(layer.node.origin) }, layer);
    };
    let (first, second) = table.entries.iter().cloned().partition(|e| keys.contains(&e.key.as_str()));
    let half = |entries| Layer {
        path: layer.path.clone(),
        node: Node { value: Value::Table(Table { entries }), origin: layer.node.origin },
    };
    (half(first), half(second))
}

/// Merges all layers into one table with the origin of the last one.
fn merge_layers(name: &str, layers: &[Layer], fallback: Origin) -> Node {
    let mut merged = empty(fallback);
    for layer in layers {
        merged.origin = layer.node.origin;
        match (&mut merged.value, &layer.node.value) {
            (Value::Table(base), Value::Table(over)) => merge_section(base, over.clone(), name, CHOICES),
            (base, value) => *base = value.clone(),
        }
    }
    merged
}
