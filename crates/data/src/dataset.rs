use std::fmt;
use std::sync::Arc;

use rloom_core::Task;
use rloom_hub::Hub;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::messages::{unusable, wrong_type};
use crate::record::ANSWER_NAMES;
use crate::rows::Rows;
use crate::source::Generator;
use crate::{DataError, DataSettings, FieldProblem, Location, PromptFormat, Source};

/// One of the disjoint parts of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Demonstrations for supervised stages.
    Demonstration,
    /// Tasks for reinforcement learning.
    Train,
    /// Held-out tasks, in neither of the other splits.
    Eval,
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
    },
    Generated(Box<(Generator, PromptFormat)>),
}

impl Dataset {
    /// Opens a split. `seed` determines the tasks of a generator and their order; files do not use it. Data sets on a hub come
    /// from the one that the environment selects.
    pub fn open(settings: &DataSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        Self::open_with(settings, split, seed, &Hub::from_env())
    }

    /// Opens a split as [`Dataset::open`] does, with data sets from the given hub.
    pub fn open_with(settings: &DataSettings, split: Split, seed: u64, hub: &Hub) -> Result<Self, DataError> {
        settings.validate()?;
        let format = &settings.prompt_format;
        if let Source::Files(files) = &settings.source {
            let rows = files.read(format, split, hub)?;
            return Self::new(Tasks::Rows { rows, answer_field: files.answer_field.clone() }, split);
        }
        let Some(generator) = settings.source.generator(split, seed)? else {
            return Err(DataError::EmptySplit { split });
        };
        Self::new(Tasks::Generated(Box::new((generator, format.clone()))), split)
    }

    fn new(tasks: Tasks, split: Split) -> Result<Self, DataError> {
        let dataset = Self { tasks };
        if dataset.is_empty() { Err(DataError::EmptySplit { split }) } else { Ok(dataset) }
    }

    /// Number of tasks per epoch.
    pub fn len(&self) -> u64 {
        match &self.tasks {
            Tasks::Rows { rows, .. } => rows.tasks.len() as u64,
            Tasks::Generated(generated) => generated.0.len(),
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
            Tasks::Rows { rows, .. } => Ok(rows.tasks[position as usize].clone()),
            Tasks::Generated(generated) => {
                let (generator, format) = generated.as_ref();
                let task = generator.task(position)?;
                Ok(Task {
                    index: position,
                    prompt: format.plain(task.prompt),
                    answer: task.answer,
                    demonstration: Some(task.demonstration),
                    domain: generator.name().to_owned(),
                    extra: Arc::new(
                        task.tests.map(|tests| ("tests".to_owned(), tests)).into_iter().collect(),
                    ),
                })
            }
        }
    }

    /// True if the tasks are generated instead of read from files.
    pub fn is_generated(&self) -> bool {
        matches!(self.tasks, Tasks::Generated(_))
    }

    /// Place in the data of the task at a position below [`Dataset::len`].
    pub fn location(&self, position: u64) -> Result<Location, DataError> {
        let len = self.len();
        match &self.tasks {
            _ if position >= len => Err(DataError::OutOfRange { position, len }),
            Tasks::Rows { rows, .. } => Ok(rows.location(position as usize)),
            Tasks::Generated(generated) => {
                Ok(Location::Generated { generator: generated.0.name(), position })
            }
        }
    }

    /// Drops the rows at the positions for which `keep` is false. Tasks keep their indices. Generated tasks are not dropped.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        if let Tasks::Rows { rows, .. } = &mut self.tasks {
            rows.retain(|position| keep(position as u64));
        }
    }

    /// Checks that every task has a reference answer, which `reader` needs (such as "the reward `math`").
    pub fn check_answers(&self, reader: &str) -> Result<(), DataError> {
        let Tasks::Rows { rows, answer_field } = &self.tasks else { return Ok(()) };
        let Some(position) = rows.tasks.iter().position(|task| task.answer.is_empty()) else { return Ok(()) };
        let (at, extra) = (rows.location(position), &rows.tasks[position].extra);
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
                DataError::NoAnswer { at, reader: reader.to_owned(), wanted, found }
            }
        })
    }

    /// All tasks in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Task, DataError>> + '_ {
        (0..self.len()).map(|position| self.get(position))
    }
}
