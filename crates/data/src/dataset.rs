use std::fmt;

use rloom_core::Task;
use rloom_hub::Hub;
use serde::{Deserialize, Serialize};

use crate::generator::{Arithmetic, Countdown, Generator, Guess, Sorting};
use crate::{DataError, DataSettings, PromptFormat, Source};

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
    Rows(Vec<Task>),
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
        let generator = match &settings.source {
            Source::Files(files) => return Self::new(Tasks::Rows(files.read(format, split, hub)?), split),
            Source::Arithmetic(s) => Generator::Arithmetic(Arithmetic::new(s, split, seed)?),
            Source::Countdown(s) => Generator::Countdown(Countdown::new(s, split, seed)?),
            Source::Guess(s) => Generator::Guess(Guess::new(s, split, seed)?),
            Source::Sorting(s) => Generator::Sorting(Sorting::new(s, split, seed)?),
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
            Tasks::Rows(rows) => rows.len() as u64,
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
            Tasks::Rows(rows) => Ok(rows[position as usize].clone()),
            Tasks::Generated(generated) => {
                let (generator, format) = generated.as_ref();
                let task = generator.task(position)?;
                Ok(Task {
                    index: position,
                    prompt: format.plain(task.prompt),
                    answer: task.answer,
                    demonstration: Some(task.demonstration),
                    domain: generator.name().to_owned(),
                })
            }
        }
    }

    /// All tasks in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Task, DataError>> + '_ {
        (0..self.len()).map(|position| self.get(position))
    }
}
