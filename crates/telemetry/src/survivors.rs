//! Selection of the lines that later attempts have not superseded.
//!
//! A resumed run repeats the steps after its checkpoint and reports them again; only the last report of a step, evaluation
//! or group is kept. The selection holds the starts of stages and the subjects that several attempts reported, so that its
//! size depends on the repeated work and not on the length of the run.

use std::collections::HashMap;

use crate::event::{Activity, Event, EventLine};

/// The parts of a line that decide about its survival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineKey<'a> {
    pub(crate) attempt: u32,
    pub(crate) stage: &'a str,
    pub(crate) step: u64,
    pub(crate) global_step: u64,
    pub(crate) kind: LineKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    StageStarted {
        from_step: u64,
    },
    Step,
    Sample,
    Evaluation,
    EvaluationSample,
    Validation,
    /// An activity of a step. `version` is the number of the batch if `is_batch`.
    Activity {
        version: u64,
        is_batch: bool,
    },
    Group {
        ticket: Option<u64>,
    },
    End {
        ticket: u64,
    },
    Other,
}

impl<'a> From<&'a EventLine> for LineKey<'a> {
    fn from(line: &'a EventLine) -> Self {
        let kind = match &line.event {
            Event::StageStarted { from_step, .. } => LineKind::StageStarted { from_step: *from_step },
            Event::Step { .. } => LineKind::Step,
            Event::Sample(_) => LineKind::Sample,
            Event::Evaluation { .. } => LineKind::Evaluation,
            Event::EvaluationSample(_) => LineKind::EvaluationSample,
            Event::Validation { .. } => LineKind::Validation,
            Event::Activity { activity: Activity::Group, ticket, .. } => LineKind::Group { ticket: *ticket },
            Event::Activity { activity, version, .. } => {
                LineKind::Activity { version: *version, is_batch: *activity == Activity::Train }
            }
            Event::GroupEnded { ticket, .. } => LineKind::End { ticket: *ticket },
            _ => LineKind::Other,
        };
        let EventLine { attempt, stage, step, global_step, .. } = line;
        Self { attempt: *attempt, stage, step: *step, global_step: *global_step, kind }
    }
}

impl LineKey<'_> {
    /// Number of steps of the earlier stages.
    fn stage_base(&self) -> u64 {
        self.global_step.saturating_sub(self.step)
    }

    /// Returns the step over all stages that the line reports on; `None` for lines that do not belong to a step.
    fn reported_step(&self) -> Option<u64> {
        match self.kind {
            LineKind::Step
            | LineKind::Sample
            | LineKind::Evaluation
            | LineKind::EvaluationSample
            | LineKind::Validation => Some(self.global_step),
            LineKind::Activity { version, is_batch } => {
                Some(self.stage_base() + version + u64::from(is_batch))
            }
            // A group belongs to no step until its batch is cut; it is superseded by ticket.
            LineKind::Group { .. }
            | LineKind::End { .. }
            | LineKind::StageStarted { .. }
            | LineKind::Other => None,
        }
    }

    /// The subject that several attempts may report, with its number.
    fn subject(&self) -> Option<(Subject, u64)> {
        match self.kind {
            LineKind::Evaluation => Some((Subject::Evaluation, self.global_step)),
            LineKind::EvaluationSample => Some((Subject::EvaluationSample, self.global_step)),
            LineKind::Validation => Some((Subject::Validation, self.global_step)),
            LineKind::Group { ticket } => ticket.map(|ticket| (Subject::Group, ticket)),
            LineKind::End { ticket } => Some((Subject::End, ticket)),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Evaluation,
    EvaluationSample,
    Validation,
    Group,
    End,
}

/// Largest numbers of a subject in a stage.
#[derive(Debug, Clone, Copy)]
struct Largest {
    attempt: u32,
    /// In this attempt.
    now: u64,
    /// In earlier attempts.
    before: Option<u64>,
}

/// Selects lines of an event stream, after all of its lines were added in order.
#[derive(Debug, Default)]
pub(crate) struct Survivors {
    /// Starts of stages: position of the line and the last step that the start does not repeat. Once complete, the least
    /// such step of this start and all later ones.
    starts: Vec<(u64, u64)>,
    stages: Vec<String>,
    largest: HashMap<(Subject, usize), Largest>,
    /// Last attempt of the subjects that several attempts may have reported.
    repeated: HashMap<(Subject, usize, u64), u32>,
}

impl Survivors {
    /// Adds the line at a position. Positions ascend.
    pub(crate) fn add(&mut self, position: u64, key: &LineKey<'_>) {
        if let LineKind::StageStarted { from_step } = key.kind {
            self.starts.push((position, key.stage_base() + from_step));
        }
        if let Some((subject, number)) = key.subject() {
            self.mention(subject, number, key);
            if subject == Subject::Group {
                // A regenerated group invalidates the end that an earlier attempt reported.
                self.mention(Subject::End, number, key);
            }
        }
    }

    fn mention(&mut self, subject: Subject, number: u64, key: &LineKey<'_>) {
        let stage = self.stages.iter().position(|stage| stage == key.stage).unwrap_or_else(|| {
            self.stages.push(key.stage.to_owned());
            self.stages.len() - 1
        });
        let first = Largest { attempt: key.attempt, now: number, before: None };
        let largest = self.largest.entry((subject, stage)).or_insert(first);
        if largest.attempt == key.attempt {
            largest.now = largest.now.max(number);
        } else {
            let before = largest.before.max(Some(largest.now));
            *largest = Largest { before, ..first };
        }
        // Numbers grow during a run: larger ones are new.
        if largest.before >= Some(number) {
            self.repeated.insert((subject, stage, number), key.attempt);
        }
    }

    /// Completes the selection after the last line.
    pub(crate) fn complete(&mut self) {
        let mut least = u64::MAX;
        for (_, from_step) in self.starts.iter_mut().rev() {
            least = least.min(*from_step);
            *from_step = least;
        }
    }

    /// True if no later attempt superseded the line at a position.
    pub(crate) fn contains(&self, position: u64, key: &LineKey<'_>) -> bool {
        let later = self.starts.partition_point(|(start, _)| *start <= position);
        let repeated_after = self.starts.get(later).map_or(u64::MAX, |(_, from_step)| *from_step);
        if key.reported_step().is_some_and(|step| step > repeated_after) {
            return false;
        }
        let Some((subject, number)) = key.subject() else { return true };
        let Some(stage) = self.stages.iter().position(|stage| stage == key.stage) else { return true };
        self.repeated.get(&(subject, stage, number)).is_none_or(|last| *last == key.attempt)
    }

    /// Number of entries that the selection holds.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.starts.len() + self.stages.len() + self.largest.len() + self.repeated.len()
    }
}
