//! Rows that are dropped or cut because of their length.

use rloom_data::{Dataset, RowRules, TooLong};

use crate::{PromptError, TaskLength};

/// Limits on the lengths of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimits {
    /// Maximum number of tokens of a prompt; longer ones are dropped.
    pub max_prompt_tokens: Option<u64>,
    /// Context length of the model in tokens.
    pub context: usize,
    /// Rules of a stage that learns from rows.
    pub rules: Option<RowRules>,
}

/// Numbers of rows that were dropped, by the reason, and of those that will be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// Dropped: the prompt is longer than `max_prompt_tokens`.
    pub long_prompts: u64,
    /// Dropped by `too_long = "drop"`.
    pub long: u64,
    /// Dropped: nothing to learn from is left after the row is cut.
    pub no_room: u64,
    /// Cut.
    pub cut: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Cut,
    LongPrompt,
    Long,
    NoRoom,
}

impl Fate {
    fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Cut)
    }
}

impl RowLimits {
    /// True if rows can be dropped.
    pub fn drops_rows(&self) -> bool {
        self.max_prompt_tokens.is_some() || self.rules.is_some_and(|rules| rules.too_long != TooLong::Error)
    }

    /// Most tokens of a row.
    pub fn room(&self) -> usize {
        self.rules.map_or(self.context, |rules| rules.limit(self.context))
    }

    fn fate(&self, length: &TaskLength) -> Fate {
        if self.max_prompt_tokens.is_some_and(|limit| u64::from(length.prompt) > limit) {
            return Fate::LongPrompt;
        }
        let Some(rules) = self.rules else { return Fate::Kept };
        let room = self.room() as u64;
        if length.total() <= room {
            return Fate::Kept;
        }
        let least = u64::from(length.least);
        match rules.too_long {
            TooLong::Error => Fate::Kept,
            TooLong::Drop => Fate::Long,
            TooLong::KeepStart if least > 0 && u64::from(length.prompt) + least > room => Fate::NoRoom,
            TooLong::KeepEnd if least + 1 > room => Fate::NoRoom,
            TooLong::KeepStart | TooLong::KeepEnd => Fate::Cut,
        }
    }

    /// True for each row that remains.
    pub fn kept(&self, lengths: &[TaskLength]) -> Vec<bool> {
        lengths.iter().map(|length| self.fate(length).is_kept()).collect()
    }

    /// Drops the rows that are too long, and returns the lengths of the others. `lengths` are those of all rows.
    pub fn apply(
        &self,
        dataset: &mut Dataset,
        lengths: &[TaskLength],
    ) -> Result<(Vec<TaskLength>, RowCounts), PromptError> {
        let mut counts = RowCounts::default();
        let mut kept = Vec::new();
        for length in lengths {
            let fate = self.fate(length);
            match fate {
                Fate::Kept => {}
                Fate::Cut => counts.cut += 1,
                Fate::LongPrompt => counts.long_prompts += 1,
                Fate::Long => counts.long += 1,
                Fate::NoRoom => counts.no_room += 1,
            }
            if fate.is_kept() {
                kept.push(self.cut(*length));
            }
        }
        if kept.is_empty() && !lengths.is_empty() {
            return Err(self.all_dropped(lengths));
        }
        dataset.retain(|position| {
            lengths.get(position as usize).is_none_or(|length| self.fate(length).is_kept())
        });
        Ok((kept, counts))
    }

    /// The length of a row after it is cut.
    fn cut(&self, length: TaskLength) -> TaskLength {
        let excess = length.total().saturating_sub(self.room() as u64) as u32;
        match self.rules.map(|rules| rules.too_long) {
            Some(TooLong::KeepStart) => {
                let of_prompt = excess.saturating_sub(length.demonstration);
                TaskLength {
                    prompt: length.prompt - of_prompt,
                    demonstration: length.demonstration - excess.min(length.demonstration),
                    ..length
                }
            }
            Some(TooLong::KeepEnd) => {
                let of_prompt = excess.min(length.prompt.saturating_sub(1));
                TaskLength {
                    prompt: length.prompt - of_prompt,
                    demonstration: length.demonstration - (excess - of_prompt),
                    ..length
                }
            }
            _ => length,
        }
    }

    fn all_dropped(&self, lengths: &[TaskLength]) -> PromptError {
        let shortest = lengths.iter().map(|length| length.prompt).min().unwrap_or(0);
        match self.max_prompt_tokens.filter(|limit| u64::from(shortest) > *limit) {
            Some(limit) => PromptError::AllDropped { prompts: lengths.len(), limit, shortest },
            None => PromptError::AllTooLong {
                rows: lengths.len(),
                room: self.room(),
                shortest: lengths.iter().map(|length| length.total()).min().unwrap_or(0),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fates of rows by their numbers of tokens: prompt, completion, and the fewest that can be learned from.
    fn fates(too_long: TooLong, rows: &[[u32; 3]]) -> Vec<Fate> {
        let rules = RowRules { too_long, max_tokens: Some(10), ..RowRules::default() };
        let limits = RowLimits { max_prompt_tokens: Some(20), context: 32, rules: Some(rules) };
        let of = |&[prompt, demonstration, least]: &[u32; 3]| {
            limits.fate(&TaskLength { prompt, demonstration, least })
        };
        rows.iter().map(of).collect()
    }

    #[test]
    fn rows_are_kept_up_to_the_limit() {
        let rows = [[4, 6, 1], [4, 7, 1], [21, 1, 1]];
        assert_eq!(fates(TooLong::Error, &rows), [Fate::Kept, Fate::Kept, Fate::LongPrompt]);
        assert_eq!(fates(TooLong::Drop, &rows), [Fate::Kept, Fate::Long, Fate::LongPrompt]);
        assert_eq!(fates(TooLong::KeepStart, &rows), [Fate::Kept, Fate::Cut, Fate::LongPrompt]);
    }

    #[test]
    fn rows_that_would_have_nothing_to_learn_from_are_dropped() {
        // The prompt stays: 9 + 1 tokens fit, 10 + 1 do not.
        assert_eq!(
            fates(TooLong::KeepStart, &[[9, 5, 1], [10, 5, 1], [15, 5, 0]]),
            [Fate::Cut, Fate::NoRoom, Fate::Cut]
        );
        // A token of the prompt stays before what is learned.
        assert_eq!(fates(TooLong::KeepEnd, &[[15, 9, 9], [15, 10, 10]]), [Fate::Cut, Fate::NoRoom]);
    }
}
