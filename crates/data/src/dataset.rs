use rloom_core::Task;
use serde::{Deserialize, Serialize};

use crate::generator::Generator;
use crate::{DataError, DataSettings, Presentation};

/// Which of a source's disjoint parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Worked examples for supervised stages.
    Demonstration,
    /// Tasks for reinforcement learning.
    Train,
    /// Held-out tasks: in neither of the others.
    Eval,
}

/// The tasks of one split.
///
/// Files share one body of rows between [`Split::Demonstration`] and [`Split::Train`] and keep
/// [`Split::Eval`] apart; generators keep all three apart.
#[derive(Debug, Clone)]
pub struct Dataset {
    tasks: Tasks,
}

#[derive(Debug, Clone)]
enum Tasks {
    Rows(Vec<Task>),
    Generated(Box<(Generator, Presentation)>),
}

impl Dataset {
    /// Opens a split. `seed` decides which tasks a generator makes of its split, and in which order; files do
    /// not read it.
    pub fn open(settings: &DataSettings, split: Split, seed: u64) -> Result<Self, DataError> {
        settings.validate()?;
        let presentation = &settings.presentation;
        let tasks = if let Some(files) = settings.source.files() {
            Tasks::Rows(files.read(presentation, split)?)
        } else {
            let generator = Generator::new(&settings.source, split, seed)?;
            Tasks::Generated(Box::new((generator, presentation.clone())))
        };
        let dataset = Self { tasks };
        if dataset.is_empty() {
            return Err(DataError::Empty {
                why: format!("its {split:?} split holds no task").to_lowercase(),
            });
        }
        Ok(dataset)
    }

    /// How many tasks make an epoch.
    pub fn len(&self) -> u64 {
        match &self.tasks {
            Tasks::Rows(rows) => rows.len() as u64,
            Tasks::Generated(generated) => generated.0.len(),
        }
    }

    /// Whether there is none. An opened dataset never is.
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
                let (generator, presentation) = generated.as_ref();
                let made = generator.task(position)?;
                Ok(Task {
                    index: position,
                    prompt: presentation.plain(made.prompt),
                    answer: made.answer,
                    demonstration: Some(made.demonstration),
                    domain: generator.name().to_owned(),
                })
            }
        }
    }

    /// All tasks in order, each as [`Dataset::get`] gives it.
    pub fn iter(&self) -> impl Iterator<Item = Result<Task, DataError>> + '_ {
        (0..self.len()).map(|position| self.get(position))
    }
}
