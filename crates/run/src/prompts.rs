//! The data of a run, checked before its first step: prompts are measured, answers are complete.

use std::path::Path;

use rloom_collect::{
    PromptError, PromptRoom, Selection, TaskLength, check_room, drop_long_prompts, measure_prompts,
};
use rloom_config::{Config, EvalSettings, ModelSource, Stage};
use rloom_data::{DataSettings, Dataset, Split};
use rloom_env::EnvironmentSettings;
use rloom_hub::Hub;
use rloom_reward::RewardSettings;
use rloom_telemetry::PromptSummary;
use rloom_text::Tokenizer;

use crate::RunError;

/// Tasks of a generator that are measured.
const GENERATED: u64 = 1024;

/// Progress of a measurement.
#[derive(Debug)]
pub(crate) enum PromptProgress {
    /// Some prompts of a stage are measured.
    Measuring {
        /// Number of measured prompts.
        done: u64,
        /// Number of prompts to measure.
        total: u64,
    },
    /// All prompts of a stage are measured.
    Measured(PromptSummary),
}

/// Checks the data of a run without starting it, and measures its prompts. `context` is the context length of the policy in
/// tokens. `None` if tokenizer or data would have to be downloaded.
pub fn measure_prompts_of(config: &Config, context: usize) -> Result<Option<Vec<PromptSummary>>, RunError> {
    let tokenizer = match &config.model {
        ModelSource::New { tokenizer, .. } => Tokenizer::characters(tokenizer)?,
        ModelSource::Path(path) if Path::new(path).is_dir() => Tokenizer::load(Path::new(path))?,
        ModelSource::Path(_) => return Ok(None),
    };
    let data = config.stages.iter().map(|stage| &stage.data);
    if data.chain(config.eval.iter().map(|eval| &eval.data)).any(DataSettings::is_on_a_hub) {
        return Ok(None);
    }
    let mut summaries = Vec::new();
    let threads = crate::context(config.run.threads)?.threads();
    let hub = Hub::from_env();
    PromptCheck::new(&tokenizer, context, threads, config.run.seed, &hub).run(
        config,
        0,
        &mut |progress| {
            if let PromptProgress::Measured(summary) = progress {
                summaries.push(summary);
            }
            true
        },
    )?;
    Ok(Some(summaries))
}

/// The rows that remain of each data set of a run.
#[derive(Debug, Default)]
pub(crate) struct KeptRows(Vec<(DataSettings, Split, Vec<bool>)>);

impl KeptRows {
    /// Opens a split without the rows that were dropped.
    pub(crate) fn open(
        &self,
        data: &DataSettings,
        split: Split,
        seed: u64,
        hub: &Hub,
    ) -> Result<Dataset, RunError> {
        let mut dataset = Dataset::open_with(data, split, seed, hub)?;
        if let Some((.., kept)) = self.0.iter().find(|(own, of, _)| own == data && *of == split) {
            dataset.retain(|position| kept.get(position as usize).copied().unwrap_or(true));
        }
        Ok(dataset)
    }
}

/// One use of a data set.
struct DataUse<'c> {
    name: &'c str,
    data: &'c DataSettings,
    split: Split,
    /// Most tasks that are used.
    limit: u64,
    room: PromptRoom,
    /// Reader of the reference answers, in messages.
    answer_reader: Option<String>,
}

impl<'c> DataUse<'c> {
    fn of_stage(stage: &'c Stage, context: usize) -> Self {
        let rollout = stage.rollout.as_ref();
        let room = match rollout {
            Some(rollout) => {
                PromptRoom::Completion { context, max_new_tokens: rollout.sampling.max_new_tokens }
            }
            None => PromptRoom::Demonstration { context },
        };
        Self {
            name: &stage.name,
            data: &stage.data,
            split: if rollout.is_some() { Split::Train } else { Split::Demonstration },
            limit: u64::MAX,
            room,
            answer_reader: answer_reader(rollout.map(|rollout| &rollout.reward), &stage.environment),
        }
    }

    fn of_evaluation(eval: &'c EvalSettings, context: usize) -> Self {
        Self {
            name: "eval",
            data: &eval.data,
            split: Split::Eval,
            limit: eval.tasks,
            room: PromptRoom::Completion { context, max_new_tokens: eval.sampling.max_new_tokens },
            answer_reader: answer_reader(Some(&eval.reward), &eval.environment),
        }
    }

    fn max_prompt_tokens(&self) -> Option<u64> {
        self.data.source.files().and_then(|files| files.max_prompt_tokens)
    }

    fn error(&self, source: PromptError) -> RunError {
        RunError::Prompts { used_by: self.name.to_owned(), source: Box::new(source) }
    }
}

fn answer_reader(reward: Option<&RewardSettings>, environment: &EnvironmentSettings) -> Option<String> {
    let component = reward.and_then(RewardSettings::answer_reader);
    let environment = environment.reads_answer().then(|| format!("the environment `{}`", environment.name()));
    component.map(|name| format!("the reward `{name}`")).or(environment)
}

/// Measures the prompts of a run whose tokenizer and context length are given.
#[derive(Debug)]
pub(crate) struct PromptCheck<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) context: usize,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) hub: &'a Hub,
    /// Measurements so far: stages often share their data.
    measured: Vec<(DataSettings, Split, Selection, Vec<TaskLength>)>,
}

impl<'a> PromptCheck<'a> {
    pub(crate) fn new(
        tokenizer: &'a Tokenizer,
        context: usize,
        threads: usize,
        seed: u64,
        hub: &'a Hub,
    ) -> Self {
        Self { tokenizer, context, threads, seed, hub, measured: Vec::new() }
    }

    /// Checks the data of the stages from `first` on, and of the evaluation if they evaluate. `progress` returns false to
    /// stop; the result is then `None`.
    pub(crate) fn run(
        mut self,
        config: &Config,
        first: usize,
        progress: &mut dyn FnMut(PromptProgress) -> bool,
    ) -> Result<Option<KeptRows>, RunError> {
        let stages = &config.stages[first.min(config.stages.len())..];
        let eval = config.eval.as_ref().filter(|_| stages.iter().any(|stage| stage.eval_every > 0));
        let context = self.context;
        let uses = stages.iter().map(|stage| DataUse::of_stage(stage, context));
        let eval = eval.map(|eval| DataUse::of_evaluation(eval, context));
        let mut kept = KeptRows::default();
        for one in uses.chain(eval) {
            let Some(summary) = self.one(&one, &mut kept, progress)? else { return Ok(None) };
            if !progress(PromptProgress::Measured(summary)) {
                return Ok(None);
            }
        }
        Ok(Some(kept))
    }

    /// Checks the data of an evaluation outside of a run.
    pub(crate) fn evaluation(mut self, eval: &EvalSettings) -> Result<KeptRows, RunError> {
        let mut kept = KeptRows::default();
        self.one(&DataUse::of_evaluation(eval, self.context), &mut kept, &mut |_| true)?;
        Ok(kept)
    }

    fn one(
        &mut self,
        one: &DataUse<'_>,
        kept: &mut KeptRows,
        progress: &mut dyn FnMut(PromptProgress) -> bool,
    ) -> Result<Option<PromptSummary>, RunError> {
        let mut dataset = Dataset::open_with(one.data, one.split, self.seed, self.hub)?;
        if let Some(reader) = &one.answer_reader {
            dataset.check_answers(reader)?;
        }
        let limit = one.max_prompt_tokens();
        let span = if limit.is_some() { dataset.len() } else { dataset.len().min(one.limit) };
        let selection = if dataset.is_generated() {
            Selection { span, count: span.min(GENERATED) }
        } else {
            Selection::first(span)
        };
        let Some(mut lengths) = self.lengths(one, &dataset, selection, progress)? else { return Ok(None) };
        let (before, mut used) = (lengths.len(), selection);
        if let Some(limit) = limit {
            if !kept.0.iter().any(|(data, split, _)| data == one.data && *split == one.split) {
                let is_kept = lengths.iter().map(|length| u64::from(length.prompt) <= limit).collect();
                kept.0.push((one.data.clone(), one.split, is_kept));
            }
            lengths = drop_long_prompts(&mut dataset, &lengths, limit).map_err(|source| one.error(source))?;
            used = Selection::first(lengths.len() as u64);
        }
        let dropped = (before - lengths.len()) as u64;
        lengths.truncate(usize::try_from(one.limit).unwrap_or(usize::MAX));
        check_room(&dataset, &lengths, used, one.room).map_err(|source| one.error(source))?;
        Ok(Some(summary(one, dataset.len(), dropped, &lengths)))
    }

    fn lengths(
        &mut self,
        one: &DataUse<'_>,
        dataset: &Dataset,
        selection: Selection,
        progress: &mut dyn FnMut(PromptProgress) -> bool,
    ) -> Result<Option<Vec<TaskLength>>, RunError> {
        let is_same = |(data, split, of, _): &&(DataSettings, Split, Selection, Vec<TaskLength>)| {
            data == one.data && *split == one.split && *of == selection
        };
        if let Some((.., lengths)) = self.measured.iter().find(is_same) {
            return Ok(Some(lengths.clone()));
        }
        let mut report = |done| progress(PromptProgress::Measuring { done, total: selection.count });
        let with_demonstrations = one.split == Split::Demonstration;
        let tokenizer =
            self.tokenizer.clone().with_template_variables(&one.data.prompt_format.template_variables);
        let lengths =
            measure_prompts(dataset, &tokenizer, selection, with_demonstrations, self.threads, &mut report);
        let lengths = lengths.map_err(|source| one.error(source))?;
        if let Some(lengths) = &lengths {
            self.measured.push((one.data.clone(), one.split, selection, lengths.clone()));
        }
        Ok(lengths)
    }
}

fn summary(one: &DataUse<'_>, tasks: u64, dropped: u64, lengths: &[TaskLength]) -> PromptSummary {
    let mut prompts: Vec<u32> = lengths.iter().map(|length| length.prompt).collect();
    prompts.sort_unstable();
    PromptSummary {
        used_by: one.name.to_owned(),
        tasks,
        measured: prompts.len() as u64,
        median: prompts.get(prompts.len() / 2).copied().unwrap_or(0).into(),
        longest: prompts.last().copied().unwrap_or(0).into(),
        room: one.room.tokens() as u64,
        dropped,
    }
}
