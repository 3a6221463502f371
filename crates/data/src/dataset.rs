use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rloom_core::{Apportionment, Task};
use rloom_hub::Hub;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cursor::Positions;
use crate::messages::{unusable, wrong_type};
use crate::mixture::WeightedSource;
use crate::record::ANSWER_NAMES;
use crate::rows::{RowCache, Rows};
use crate::source::Generator;
use crate::{DataError, DataSettings, FieldProblem, Location, PromptFormat, RowKind, RowRules, Source};

/// One of the disjoint parts of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Demonstrations, pairs and labels for stages that learn from rows.
    Demonstration,
    /// Tasks for reinforcement learning.
    Train,
    /// Held-out tasks, in neither of the other splits.
    Eval,
}

impl Split {
    /// The kind of rows of the split, unless a stage's method reads another.
    fn usual_kind(self) -> RowKind {
        match self {
            Self::Demonstration => RowKind::Demonstrations,
            Self::Train | Self::Eval => RowKind::Prompts,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Demonstration => "demonstration",
            Self::Train => "train",
            Self::Eval => "eval",
        })
    }
}

/// The tasks of one split.
///
/// With files, [`Split::Demonstration`] and [`Split::Train`] contain the same rows and [`Split::Eval`] is disjoint; with
/// generators, all three are disjoint.
#[derive(Debug, Clone)]
pub struct Dataset {
    tasks: Tasks,
}

#[derive(Debug, Clone)]
enum Tasks {
    Rows {
        rows: Rows,
        /// Setting `answer_field`.
        answer_field: Option<String>,
        rules: RowRules,
    },
    Generated(Box<Generated>),
    Mixed(Vec<Part>),
}

#[derive(Debug, Clone)]
struct Generated {
    generator: Generator,
    format: PromptFormat,
    domain: String,
}

/// A source of a mixture.
#[derive(Debug, Clone)]
struct Part {
    weight: f64,
    /// Added to the indices of its tasks, so that those of all sources differ.
    first_index: u64,
    dataset: Dataset,
}

impl Dataset {
    /// Opens a split. `seed` determines the tasks of a generator and their order; files do not use it. Data sets on a hub come
    /// from the one that the environment selects.
    pub fn open(settings: &DataSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        Self::open_with(settings, split, seed, &Hub::from_env())
    }

    /// Opens a split as [`Dataset::open`] does, with data sets from the given hub.
    pub fn open_with(settings: &DataSettings, split: Split, seed: u64, hub: &Hub) -> Result<Self, DataError> {
        Self::open_kind(settings, split, split.usual_kind(), seed, hub)
    }

    /// Opens a split for a stage whose method reads rows of a kind.
    pub fn open_kind(
        settings: &DataSettings,
        split: Split,
        kind: RowKind,
        seed: u64,
        hub: &Hub,
    ) -> Result<Self, DataError> {
        Self::open_cached(settings, split, kind, seed, hub, &RowCache::default())
    }

    /// Opens a split as [`Dataset::open_kind`] does, with the rows that are in the cache.
    pub fn open_cached(
        settings: &DataSettings,
        split: Split,
        kind: RowKind,
        seed: u64,
        hub: &Hub,
        cache: &RowCache,
    ) -> Result<Self, DataError> {
        settings.validate()?;
        let format = &settings.prompt_format;
        if let Source::Files(files) = &settings.source {
            let rows = files.read(format, (split, kind), hub, cache)?;
            let rules = files.rules(rows.are_texts());
            return Self::new(Tasks::Rows { rows, answer_field: files.answer_field.clone(), rules }, split);
        }
        if let Source::Mixture(sources) = &settings.source {
            return Self::mixed(sources, (split, kind), seed, hub, cache);
        }
        let dataset = Self::generated(settings, split, seed)?;
        // A task that cannot be generated is an error once it is read.
        let first = dataset.get(0).ok().filter(|_| kind.is_offline());
        match first.and_then(|task| task.demonstration.as_ref().map(RowKind::of_demonstration)) {
            Some(found) if found != kind => {
                Err(DataError::GeneratorKind { generator: settings.source.name(), wanted: kind, found })
            }
            _ => Ok(dataset),
        }
    }

    fn generated(settings: &DataSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        let format = &settings.prompt_format;
        let Some(generator) = settings.source.generator(split, seed)? else {
            return Err(DataError::EmptySplit { split });
        };
        let domain = settings.domain.clone().unwrap_or_else(|| generator.name().to_owned());
        Self::new(Tasks::Generated(Box::new(Generated { generator, format: format.clone(), domain })), split)
    }

    fn mixed(
        sources: &[WeightedSource],
        (split, kind): (Split, RowKind),
        seed: u64,
        hub: &Hub,
        cache: &RowCache,
    ) -> Result<Self, DataError> {
        let mut parts = Vec::with_capacity(sources.len());
        let mut first_index = 0;
        for source in sources {
            let dataset = Self::open_cached(&source.data, split, kind, seed, hub, cache)?;
            let indices = dataset.index_bound();
            parts.push(Part { weight: source.weight, first_index, dataset });
            first_index += indices;
        }
        Self::new(Tasks::Mixed(parts), split)
    }

    /// Number above the indices of all tasks.
    fn index_bound(&self) -> u64 {
        match &self.tasks {
            Tasks::Rows { rows, .. } => rows.tasks().map(|task| task.index + 1).max().unwrap_or(0),
            Tasks::Generated(_) | Tasks::Mixed(_) => self.len(),
        }
    }

    fn new(tasks: Tasks, split: Split) -> Result<Self, DataError> {
        let dataset = Self { tasks };
        if dataset.is_empty() { Err(DataError::EmptySplit { split }) } else { Ok(dataset) }
    }

    /// Number of tasks per epoch.
    pub fn len(&self) -> u64 {
        match &self.tasks {
            Tasks::Rows { rows, .. } => rows.len() as u64,
            Tasks::Generated(generated) => generated.generator.len(),
            Tasks::Mixed(parts) => parts.iter().map(|part| part.dataset.len()).sum(),
        }
    }

    /// True if there are no tasks, which is never the case for an opened dataset.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The task at a position below [`Dataset::len`].
    pub fn get(&self, position: u64) -> Result<Task, DataError> {
        let len = self.len();
        if position >= len {
            return Err(DataError::OutOfRange { position, len });
        }
        match &self.tasks {
            Tasks::Rows { rows, .. } => Ok(rows.task(position as usize).clone()),
            Tasks::Generated(generated) => {
                let Generated { generator, format, domain } = generated.as_ref();
                let task = generator.task(position)?;
                Ok(Task {
                    index: position,
                    prompt: format.plain(task.prompt),
                    answer: task.answer,
                    demonstration: Some(task.demonstration),
                    domain: domain.clone(),
                    extra: Arc::new(
                        task.tests.map(|tests| ("tests".to_owned(), tests)).into_iter().collect(),
                    ),
                })
            }
            Tasks::Mixed(parts) => {
                let Some((part, own)) = part_of(parts, position) else {
                    return Err(DataError::OutOfRange { position, len });
                };
                let task = part.dataset.get(own)?;
                Ok(Task { index: part.first_index + task.index, ..task })
            }
        }
    }

    /// The task with an index, as [`Task::index`] has it.
    pub fn find(&self, index: u64) -> Result<Option<Task>, DataError> {
        match &self.tasks {
            Tasks::Rows { rows, .. } => Ok(rows.find(index).map(|position| rows.task(position).clone())),
            Tasks::Generated(_) if index >= self.len() => Ok(None),
            Tasks::Generated(_) => self.get(index).map(Some),
            Tasks::Mixed(parts) => {
                let part = parts.iter().rev().find(|part| part.first_index <= index);
                let Some(part) = part else { return Ok(None) };
                let found = part.dataset.find(index - part.first_index)?;
                Ok(found.map(|task| Task { index, ..task }))
            }
        }
    }

    /// How the task at a position becomes tokens in a stage that learns from rows.
    pub fn rules(&self, position: u64) -> RowRules {
        match &self.tasks {
            Tasks::Rows { rules, .. } => *rules,
            Tasks::Generated(_) => RowRules::default(),
            Tasks::Mixed(parts) => {
                part_of(parts, position).map_or_else(RowRules::default, |(part, own)| part.dataset.rules(own))
            }
        }
    }

    /// True if the tasks are generated instead of read from files.
    pub fn is_generated(&self) -> bool {
        match &self.tasks {
            Tasks::Rows { .. } => false,
            Tasks::Generated(_) => true,
            Tasks::Mixed(parts) => parts.iter().all(|part| part.dataset.is_generated()),
        }
    }

    /// Place in the data of the task at a position below [`Dataset::len`].
    pub fn location(&self, position: u64) -> Result<Location, DataError> {
        let len = self.len();
        match &self.tasks {
            _ if position >= len => Err(DataError::OutOfRange { position, len }),
            Tasks::Rows { rows, .. } => Ok(rows.location(position as usize)),
            Tasks::Generated(generated) => {
                Ok(Location::Generated { generator: generated.generator.name(), position })
            }
            Tasks::Mixed(parts) => match part_of(parts, position) {
                Some((part, own)) => part.dataset.location(own),
                None => Err(DataError::OutOfRange { position, len }),
            },
        }
    }

    /// The sources of a mixture, or this dataset alone; in the order of [`DataSettings::parts`].
    pub fn parts_mut(&mut self) -> Vec<&mut Self> {
        if !matches!(self.tasks, Tasks::Mixed(_)) {
            return vec![self];
        }
        let Tasks::Mixed(parts) = &mut self.tasks else { return Vec::new() };
        parts.iter_mut().map(|part| &mut part.dataset).collect()
    }

    /// Weights of the sources, with the positions of their tasks.
    pub(crate) fn sources(&self) -> Vec<(f64, Range<u64>)> {
        let Tasks::Mixed(parts) = &self.tasks else { return vec![(1.0, 0..self.len())] };
        let mut start = 0;
        let source = |part: &Part| {
            let positions = start..start + part.dataset.len();
            start = positions.end;
            (part.weight, positions)
        };
        parts.iter().map(source).collect()
    }

    /// Positions of at most `count` tasks: the first ones of each source, as many as its weight demands.
    pub fn selection(&self, count: u64) -> Vec<u64> {
        let mut left = self.sources();
        let mut selected = Vec::new();
        let weights = |left: &[(f64, Range<u64>)]| -> Vec<f64> {
            left.iter().map(|(weight, positions)| if positions.is_empty() { 0.0 } else { *weight }).collect()
        };
        let Some(mut turns) = Apportionment::new(&weights(&left)) else { return selected };
        while (selected.len() as u64) < count.min(self.len()) {
            let Some((_, positions)) = left.get_mut(turns.turn()) else { break };
            selected.extend(positions.next());
            if positions.is_empty() {
                turns.set_weights(&weights(&left));
            }
        }
        selected
    }

    /// Drops the rows at the positions for which `keep` is false. Tasks keep their indices. Generated tasks are not dropped.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        if let Tasks::Rows { rows, .. } = &mut self.tasks {
            rows.retain(|position| keep(position as u64));
        }
    }

    /// Number of tasks of each domain.
    pub fn domains(&self) -> BTreeMap<String, u64> {
        let mut domains = BTreeMap::new();
        match &self.tasks {
            Tasks::Rows { rows, .. } => {
                for task in rows.tasks() {
                    match domains.get_mut(&task.domain) {
                        Some(tasks) => *tasks += 1,
                        None => drop(domains.insert(task.domain.clone(), 1)),
                    }
                }
            }
            Tasks::Generated(generated) => {
                domains.insert(generated.domain.clone(), generated.generator.len());
            }
            Tasks::Mixed(parts) => {
                for (domain, tasks) in parts.iter().flat_map(|part| part.dataset.domains()) {
                    *domains.entry(domain).or_default() += tasks;
                }
            }
        }
        domains
    }

    /// Checks that every task of the domains for which there is a `reader` (such as "the reward `math`") has a reference
    /// answer.
    pub fn check_answers(&self, reader: &dyn Fn(&str) -> Option<String>) -> Result<(), DataError> {
        if let Tasks::Mixed(parts) = &self.tasks {
            return parts.iter().try_for_each(|part| part.dataset.check_answers(&reader));
        }
        let Tasks::Rows { rows, answer_field, .. } = &self.tasks else { return Ok(()) };
        let mut missing = (0..).zip(rows.tasks()).filter(|(_, task)| task.answer.is_empty());
        let Some((position, reader)) =
            missing.find_map(|(position, task)| Some((position, reader(&task.domain)?)))
        else {
            return Ok(());
        };
        let (at, extra) = (rows.location(position), &rows.task(position).extra);
        let wanted: Vec<String> = match answer_field {
            Some(name) => vec![name.clone()],
            None => ANSWER_NAMES.map(str::to_owned).to_vec(),
        };
        // A detected field whose content is not an answer is only an error if the answer is read.
        let content = |name: &String| Some((name.clone(), extra.get(name).filter(|v| !v.is_null())?));
        Err(match wanted.iter().find_map(content) {
            Some((name, Value::String(_) | Value::Number(_))) => unusable(&at, &name, FieldProblem::NoAnswer),
            Some((name, other)) => wrong_type(&at, &name, "text or a number", other),
            None => {
                let found =
                    extra.iter().filter(|(_, v)| !v.is_null()).map(|(name, _)| name.clone()).collect();
                DataError::NoAnswer { at, reader, wanted, found }
            }
        })
    }

    /// Positions of the tasks of a domain.
    pub(crate) fn positions_of(&self, domain: &str, positions: Range<u64>) -> Positions {
        match &self.tasks {
            Tasks::Generated(generated) if generated.domain == domain => Positions::Range(positions),
            Tasks::Generated(_) => Positions::Range(0..0),
            Tasks::Rows { rows, .. } => {
                let all = positions.start..positions.end.min(rows.len() as u64);
                let own = |position: &u64| rows.task(*position as usize).domain == domain;
                Positions::List(all.filter(own).collect())
            }
            Tasks::Mixed(parts) => {
                let Some((part, own)) = part_of(parts, positions.start) else {
                    return Positions::Range(0..0);
                };
                let found = part.dataset.positions_of(domain, own..own + (positions.end - positions.start));
                found.shifted(positions.start - own)
            }
        }
    }

    /// All tasks in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Task, DataError>> + '_ {
        (0..self.len()).map(|position| self.get(position))
    }
}

/// The source of the task at a position of a mixture, and its position there.
fn part_of(parts: &[Part], position: u64) -> Option<(&Part, u64)> {
    let mut own = position;
    for part in parts {
        let len = part.dataset.len();
        if own < len {
            return Some((part, own));
        }
        own -= len;
    }
    None
}
