//! The completions of the page: of the first step, of the latest steps and of steps at equal distances between them.

use std::collections::VecDeque;

use serde::Serialize;

use crate::event::{EventLine, Sample};

/// Largest number of completions of one source.
const COMPLETIONS: usize = 200;
/// Largest total length of their texts, in bytes.
const TEXT: usize = 200_000;
/// Largest number of completions of one step.
const PER_STEP: usize = 16;
/// Latest steps that are kept in addition to those at equal distances.
const LATEST: u64 = 10;
/// Longer texts lose their middle. Length in characters.
const LONGEST: usize = 1600;

/// Source of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    Train,
    Eval,
}

/// A completion in the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) stage: String,
    pub(super) step: u64,
    pub(super) kind: Source,
    #[serde(flatten)]
    pub(super) sample: Sample,
}

/// Completions of one step.
#[derive(Debug)]
struct StepRows {
    /// Number of earlier steps with completions.
    index: u64,
    global_step: u64,
    rows: Vec<Row>,
}

/// A bounded selection of completions of one source.
#[derive(Debug)]
pub(super) struct Completions {
    kind: Source,
    steps: VecDeque<StepRows>,
    /// Steps whose index is a multiple of it are kept.
    distance: u64,
    next_index: u64,
    latest: u64,
    /// Number of all completions.
    total: u64,
    rows: usize,
    bytes: usize,
}

impl Completions {
    pub(super) fn new(kind: Source) -> Self {
        Self {
            kind,
            steps: VecDeque::new(),
            distance: 1,
            next_index: 0,
            latest: LATEST,
            total: 0,
            rows: 0,
            bytes: 0,
        }
    }

    pub(super) fn add(&mut self, line: &EventLine, sample: Sample) {
        self.total += 1;
        if self.steps.back().is_none_or(|step| step.global_step != line.global_step) {
            let (index, global_step) = (self.next_index, line.global_step);
            self.next_index += 1;
            self.thin();
            self.steps.push_back(StepRows { index, global_step, rows: Vec::new() });
        }
        let Some(step) = self.steps.back_mut().filter(|step| step.rows.len() < PER_STEP) else { return };
        let row =
            Row { stage: line.stage.clone(), step: line.step, kind: self.kind, sample: shortened(sample) };
        self.bytes += bytes(&row);
        self.rows += 1;
        step.rows.push(row);
        while self.rows > COMPLETIONS || self.bytes > TEXT {
            if self.steps.iter().any(|step| step.index > 0 && step.index + self.latest < self.next_index) {
                self.distance *= 2;
            } else if self.latest > 1 {
                self.latest -= 1;
            } else {
                break;
            }
            self.thin();
        }
    }

    /// Removes the steps that are neither at a multiple of the distance nor among the latest.
    fn thin(&mut self) {
        let is_kept = |step: &StepRows| {
            step.index.is_multiple_of(self.distance) || step.index + self.latest >= self.next_index
        };
        let (mut rows, mut size) = (0, 0);
        for step in self.steps.iter().filter(|step| !is_kept(step)) {
            rows += step.rows.len();
            size += step.rows.iter().map(bytes).sum::<usize>();
        }
        if rows > 0 {
            let (distance, latest, next_index) = (self.distance, self.latest, self.next_index);
            self.steps.retain(|s| s.index.is_multiple_of(distance) || s.index + latest >= next_index);
            self.rows -= rows;
            self.bytes -= size;
        }
    }

    /// Number of all completions and of those kept.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.total, self.rows as u64)
    }

    /// Number of steps with completions, and of those kept.
    pub(super) fn steps(&self) -> (u64, u64) {
        (self.next_index, self.steps.len() as u64)
    }

    pub(super) fn into_rows(self) -> impl Iterator<Item = Row> {
        self.steps.into_iter().flat_map(|step| step.rows)
    }

    /// Bytes held in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes + self.rows * size_of::<Row>() + self.steps.len() * size_of::<StepRows>()
    }
}

fn bytes(row: &Row) -> usize {
    let sample = &row.sample;
    let components: usize = sample.components.keys().map(|name| name.len() + 16).sum();
    sample.prompt.len() + sample.completion.len() + sample.answer.len() + components
}

fn shortened(sample: Sample) -> Sample {
    Sample {
        prompt: short(sample.prompt),
        completion: short(sample.completion),
        answer: short(sample.answer),
        ..sample
    }
}

/// Replaces the middle of a long text by the number of characters left out.
pub(super) fn short(text: String) -> String {
    if text.len() <= LONGEST {
        return text;
    }
    let characters = text.chars().count();
    if characters <= LONGEST {
        return text;
    }
    let head: String = text.chars().take(LONGEST / 2).collect();
    let tail: String = text.chars().skip(characters - LONGEST / 2).collect();
    format!("{head}\n… {} characters left out …\n{tail}", characters - LONGEST / 2 * 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::sample;

    fn add(completions: &mut Completions, global_step: u64, text: &str) {
        let event = crate::Event::Warning { message: String::new() };
        let line = EventLine {
            attempt: 1,
            time: 0.0,
            elapsed: 0.0,
            stage: "rl".into(),
            step: global_step,
            global_step,
            event,
        };
        completions.add(&line, Sample { completion: text.to_owned(), ..sample(global_step, 0) });
    }

    #[test]
    fn the_first_the_latest_and_spread_steps_are_kept() {
        let mut completions = Completions::new(Source::Train);
        for step in 0..100_000u64 {
            for _ in 0..4 {
                add(&mut completions, step, "7");
            }
            assert!(completions.rows <= COMPLETIONS && completions.steps.len() <= COMPLETIONS);
        }
        assert_eq!((completions.counts().0, completions.steps().0), (400_000, 100_000));
        let steps: Vec<u64> = completions.steps.iter().map(|step| step.global_step).collect();
        assert!(steps.len() > 25 && steps[0] == 0, "{steps:?}");
        assert_eq!(steps[steps.len() - 10..], (99_990..100_000).collect::<Vec<_>>());
        let gaps: Vec<u64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|&gap| gap <= gaps[0]), "{steps:?}");
    }

    #[test]
    fn long_texts_are_bounded_in_sum_and_one_by_one() {
        let mut completions = Completions::new(Source::Eval);
        let long = "ä".repeat(1_000_000);
        for step in 0..100u64 {
            for _ in 0..40 {
                add(&mut completions, step, &long);
            }
            assert!(completions.held() < TEXT + 120_000, "{} bytes", completions.held());
        }
        assert_eq!(completions.steps.back().unwrap().global_step, 99);
        let row = completions.into_rows().next().unwrap();
        assert!(
            row.sample.completion.contains("… 998400 characters left out …"),
            "{}",
            row.sample.completion
        );
    }

    #[test]
    fn a_short_run_keeps_every_completion() {
        let mut completions = Completions::new(Source::Train);
        (0..50u64).for_each(|step| (0..4).for_each(|_| add(&mut completions, step, "7")));
        assert_eq!(completions.counts(), (200, 200));
    }
}
