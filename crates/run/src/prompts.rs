//! The data of a run, checked before its first step: prompts are measured, answers are complete.

use std::path::Path;

use rloom_algo::DataKind;
use rloom_collect::{
    PromptError, PromptRoom, RowCounts, RowLimits, Selection, TaskLength, check_room, measure_prompts,
};
use rloom_config::{Config, EvalSettings, ModelSource, Stage};
use rloom_core::LossOn;
use rloom_data::{Cursor, DataSettings, Dataset, FileSettings, RowCache, RowKind, Split};
use rloom_env::EnvironmentSettings;
use rloom_hub::Hub;
use rloom_reward::RewardSettings;
use rloom_telemetry::{PromptSummary, RowSummary};
use rloom_text::Tokenizer;
use serde_json::Value;

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
    let sets = config.eval.iter().flat_map(|eval| &eval.sets).map(|set| &set.data);
    let data = config.stages.iter().map(|stage| &stage.data).chain(sets);
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

/// What a stage reads from the rows of its data.
pub(crate) fn row_kind(stage: &Stage) -> RowKind {
    match stage.algorithm.method.data() {
        None => RowKind::Prompts,
        Some(DataKind::Demonstrations) => RowKind::Demonstrations,
        Some(DataKind::Pairs) => RowKind::Pairs,
        Some(DataKind::Labels) => RowKind::Labels,
        Some(DataKind::Steps) => RowKind::Steps,
    }
}

/// A split of the data, and what is read from its rows.
pub(crate) type SplitRows = (Split, RowKind);

/// The rows of a stage. Of a stage that samples some completions and imitates others they are demonstrations.
pub(crate) fn split_rows(stage: &Stage) -> SplitRows {
    let is_mixed =
        stage.algorithm.distillation.is_some_and(|distillation| distillation.on_policy_share() < 1.0);
    if stage.rollout.is_some() && !is_mixed {
        (Split::Train, RowKind::Prompts)
    } else {
        (Split::Demonstration, row_kind(stage))
    }
}

/// The rows that remain of each data set of a run, for each environment that it is used in, and the files that were read.
#[derive(Debug, Default)]
pub(crate) struct KeptRows {
    kept: Vec<(DataSettings, SplitRows, EnvironmentSettings, Vec<bool>)>,
    cache: RowCache,
}

impl KeptRows {
    fn find(
        &self,
        data: &DataSettings,
        split: SplitRows,
        environment: &EnvironmentSettings,
    ) -> Option<&Vec<bool>> {
        let is_same = |(own, of, by, _): &&(DataSettings, SplitRows, EnvironmentSettings, Vec<bool>)| {
            own == data && *of == split && by == environment
        };
        self.kept.iter().find(is_same).map(|(.., kept)| kept)
    }

    /// Opens a split without the rows that were dropped.
    pub(crate) fn open(
        &self,
        data: &DataSettings,
        split: SplitRows,
        environment: &EnvironmentSettings,
        seed: u64,
        hub: &Hub,
    ) -> Result<Dataset, RunError> {
        let mut dataset = Dataset::open_cached(data, split.0, split.1, seed, hub, &self.cache)?;
        for (data, part) in data.parts().zip(dataset.parts_mut()) {
            if let Some(kept) = self.find(data, split, environment) {
                part.retain(|position| kept.get(position as usize).copied().unwrap_or(true));
            }
        }
        Ok(dataset)
    }

    /// Drops the rows of files that neither stages from `next` on nor evaluation read.
    pub(crate) fn release(&self, config: &Config, next: usize) {
        let stages = config.stages.iter().skip(next).map(|stage| (&stage.data, split_rows(stage).1));
        let sets = config.eval.iter().flat_map(|eval| eval.sets.iter().map(|set| &set.data));
        let evaluated = config.eval.iter().map(|eval| &eval.data).chain(sets);
        let all = stages.chain(evaluated.map(|data| (data, RowKind::Prompts)));
        let files: Vec<(&FileSettings, RowKind)> = all
            .flat_map(|(data, kind)| data.parts().filter_map(move |part| Some((part.source.files()?, kind))))
            .collect();
        self.cache.retain(|own, kind| files.contains(&(own, kind)));
    }
}

/// One use of a data set.
struct DataUse<'c> {
    name: String,
    data: &'c DataSettings,
    split: SplitRows,
    /// Most tasks that are used.
    limit: u64,
    /// Room for the completions of prompts; `None` for rows.
    max_new_tokens: Option<usize>,
    /// Scoring of the completions; `None` for demonstrations.
    reward: Option<&'c RewardSettings>,
    environment: &'c EnvironmentSettings,
}

impl<'c> DataUse<'c> {
    /// The uses of the sources of a stage.
    fn of_stage(stage: &'c Stage) -> Vec<Self> {
        let rollout = stage.rollout.as_ref();
        let of_source = |(name, data)| Self {
            name,
            data,
            split: split_rows(stage),
            limit: u64::MAX,
            max_new_tokens: rollout.map(|rollout| rollout.sampling.max_new_tokens),
            reward: rollout.map(|rollout| &rollout.reward).filter(|reward| !reward.components.is_empty()),
            environment: &stage.environment,
        };
        let mut uses: Vec<Self> = named_sources(&stage.name, &stage.data).map(of_source).collect();
        if stage.validation.is_some() {
            let name = format!("the validation of {}", stage.name);
            let held_out = named_sources(&name, &stage.data).map(of_source);
            uses.extend(held_out.map(|one| Self { split: (Split::Eval, row_kind(stage)), ..one }));
        }
        uses
    }

    /// The uses of the sources of an evaluation, or of one of its further sets.
    fn of_evaluation(set: Option<&str>, eval: &'c EvalSettings) -> Vec<Self> {
        let name = set.map_or_else(|| "eval".to_owned(), |set| format!("eval set {set}"));
        let of_source = |(name, data)| Self {
            name,
            data,
            split: (Split::Eval, RowKind::Prompts),
            limit: eval.tasks,
            max_new_tokens: Some(eval.sampling.max_new_tokens),
            reward: Some(&eval.reward),
            environment: &eval.environment,
        };
        named_sources(&name, &eval.data).map(of_source).collect()
    }

    /// Limits on the lengths of the rows.
    fn limits(&self, dataset: &Dataset, context: usize) -> RowLimits {
        RowLimits {
            max_prompt_tokens: self.data.source.files().and_then(|files| files.max_prompt_tokens),
            context,
            rules: self.split.1.is_offline().then(|| dataset.rules(0)),
        }
    }

    fn room(&self, limits: &RowLimits) -> PromptRoom {
        match self.max_new_tokens {
            Some(max_new_tokens) => PromptRoom::Completion { context: limits.context, max_new_tokens },
            None => PromptRoom::Demonstration { room: limits.room() },
        }
    }

    /// Reader of the reference answers of a domain, in messages.
    fn answer_reader(&self, domain: &str) -> Option<String> {
        let component = self.reward.and_then(|reward| reward.answer_reader(domain));
        let environment = self.environment;
        let environment =
            environment.reads_answer().then(|| format!("the environment `{}`", environment.name()));
        component.map(|name| format!("the reward `{name}`")).or(environment)
    }

    /// Checks that a reward judges each domain of the data, and that evaluations have a verifier for it.
    fn check_domains(&self, dataset: &Dataset) -> Result<(), RunError> {
        let Some(reward) = self.reward else { return Ok(()) };
        for domain in dataset.domains().into_keys() {
            let used_by = || self.name.clone();
            if !reward.judges(&domain) {
                let judged = reward.named_domains().into_iter().map(str::to_owned).collect();
                return Err(RunError::DomainNotJudged { used_by: used_by(), domain, judged });
            }
            if self.split.0 == Split::Eval && !reward.verified().contains(&domain) {
                return Err(RunError::DomainNotVerified { used_by: used_by(), domain });
            }
        }
        Ok(())
    }

    /// Checks that no environment is expected to play rows of which only texts are read.
    fn check_environment(&self, dataset: &Dataset) -> Result<(), RunError> {
        let rows = match (self.split.1, dataset.rules(0).loss_on) {
            (RowKind::Steps, _) => "steps with labels",
            (RowKind::Demonstrations, LossOn::Assistant) => "`loss_on = \"assistant\"`",
            _ => return Ok(()),
        };
        match self.environment.name() {
            "single_turn" => Ok(()),
            environment => Err(RunError::UnplayedRows {
                used_by: self.name.clone(),
                rows,
                environment: environment.to_owned(),
            }),
        }
    }

    /// Checks that a summary is requested before the context is full.
    fn check_history(&self, context: usize) -> Result<(), RunError> {
        match self.environment.summary_limit() {
            Some(limit) if limit >= context => {
                Err(RunError::SummaryTooLate { used_by: self.name.clone(), limit, context })
            }
            _ => Ok(()),
        }
    }

    fn error(&self, source: PromptError) -> RunError {
        RunError::Prompts { used_by: self.name.clone(), source: Box::new(source) }
    }
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
    measured: Vec<Measured>,
    /// The tools of the environments so far.
    declared: Vec<(EnvironmentSettings, Vec<Value>)>,
}

/// The measured prompts of some data, with the tools that they declare.
#[derive(Debug)]
struct Measured {
    data: DataSettings,
    split: SplitRows,
    selection: Selection,
    tools: Vec<Value>,
    lengths: Vec<TaskLength>,
}

impl<'a> PromptCheck<'a> {
    pub(crate) fn new(
        tokenizer: &'a Tokenizer,
        context: usize,
        threads: usize,
        seed: u64,
        hub: &'a Hub,
    ) -> Self {
        Self { tokenizer, context, threads, seed, hub, measured: Vec::new(), declared: Vec::new() }
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
        let eval = config.eval.as_ref().filter(|_| stages.iter().any(Stage::samples_held_out));
        let uses = stages.iter().flat_map(DataUse::of_stage);
        let sets: Vec<_> = eval.into_iter().flat_map(EvalSettings::all_sets).collect();
        let sets = sets.iter().flat_map(|(name, eval)| DataUse::of_evaluation(*name, eval));
        let mut kept = KeptRows::default();
        for one in uses.chain(sets) {
            let Some(summary) = self.one(&one, &mut kept, progress)? else { return Ok(None) };
            if !progress(PromptProgress::Measured(summary)) {
                return Ok(None);
            }
        }
        for (index, stage) in (first as u32..).zip(stages) {
            self.check_domains(index, stage, &kept)?;
        }
        Ok(Some(kept))
    }

    /// Checks that the data of a stage has the domains of its quotas and filters, and that a domain is not without quota.
    fn check_domains(&self, index: u32, stage: &Stage, kept: &KeptRows) -> Result<(), RunError> {
        let Some(rollout) = &stage.rollout else { return Ok(()) };
        let (quotas, filters) = (rollout.domains.names(), &rollout.domains.filters);
        if quotas.is_empty() && filters.is_empty() {
            return Ok(());
        }
        let dataset = kept.open(&stage.data, split_rows(stage), &stage.environment, self.seed, self.hub)?;
        Cursor::over(&dataset, &quotas, stage.order, self.seed, index)?;
        let domains = dataset.domains();
        match filters.keys().find(|domain| !domains.contains_key(*domain)) {
            None => Ok(()),
            Some(domain) => Err(RunError::UnknownDomain {
                used_by: stage.name.clone(),
                domain: domain.clone(),
                found: domains.into_keys().collect(),
            }),
        }
    }

    /// Checks the data of an evaluation outside of a run.
    pub(crate) fn evaluation(mut self, eval: &EvalSettings) -> Result<KeptRows, RunError> {
        let mut kept = KeptRows::default();
        for (name, eval) in eval.all_sets() {
            for one in DataUse::of_evaluation(name, &eval) {
                self.one(&one, &mut kept, &mut |_| true)?;
            }
        }
        Ok(kept)
    }

    fn one(
        &mut self,
        one: &DataUse<'_>,
        kept: &mut KeptRows,
        progress: &mut dyn FnMut(PromptProgress) -> bool,
    ) -> Result<Option<PromptSummary>, RunError> {
        let (split, kind) = one.split;
        let mut dataset = Dataset::open_cached(one.data, split, kind, self.seed, self.hub, &kept.cache)?;
        one.check_environment(&dataset)?;
        one.check_domains(&dataset)?;
        one.check_history(self.context)?;
        dataset.check_answers(&|domain| one.answer_reader(domain))?;
        let limits = one.limits(&dataset, self.context);
        let drops = limits.drops_rows() && !dataset.is_generated();
        let span = if drops { dataset.len() } else { dataset.len().min(one.limit) };
        let selection = if dataset.is_generated() {
            Selection { span, count: span.min(GENERATED) }
        } else {
            Selection::first(span)
        };
        let Some(mut lengths) = self.lengths(one, &dataset, selection, progress)? else { return Ok(None) };
        let (mut counts, mut used) = (RowCounts::default(), selection);
        if drops {
            if kept.find(one.data, one.split, one.environment).is_none() {
                let rows = limits.kept(&lengths);
                kept.kept.push((one.data.clone(), one.split, one.environment.clone(), rows));
            }
            (lengths, counts) = limits.apply(&mut dataset, &lengths).map_err(|source| one.error(source))?;
            used = Selection::first(lengths.len() as u64);
        }
        lengths.truncate(usize::try_from(one.limit).unwrap_or(usize::MAX));
        let room = one.room(&limits);
        check_room(&dataset, &lengths, used, room).map_err(|source| one.error(source))?;
        Ok(Some(summary(one, dataset.len(), room, counts, &lengths)))
    }

    /// The tools that the prompts of an environment declare.
    fn declared_tools(&mut self, environment: &EnvironmentSettings) -> Result<Vec<Value>, RunError> {
        if let Some((_, tools)) = self.declared.iter().find(|(own, _)| own == environment) {
            return Ok(tools.clone());
        }
        let tools = environment.declared_tools()?;
        self.declared.push((environment.clone(), tools.clone()));
        Ok(tools)
    }

    fn lengths(
        &mut self,
        one: &DataUse<'_>,
        dataset: &Dataset,
        selection: Selection,
        progress: &mut dyn FnMut(PromptProgress) -> bool,
    ) -> Result<Option<Vec<TaskLength>>, RunError> {
        let tools = self.declared_tools(one.environment)?;
        let is_same = |measured: &&Measured| {
            measured.data == *one.data
                && measured.split == one.split
                && measured.selection == selection
                && measured.tools == tools
        };
        if let Some(measured) = self.measured.iter().find(is_same) {
            return Ok(Some(measured.lengths.clone()));
        }
        let mut report = |done| progress(PromptProgress::Measuring { done, total: selection.count });
        let with_demonstrations = one.split.1.is_offline();
        let mut variables = one.data.prompt_format.template_variables.clone();
        if !tools.is_empty() {
            variables.insert("tools".to_owned(), Value::Array(tools.clone()));
        }
        let tokenizer = self.tokenizer.clone().with_template_variables(&variables);
        let lengths =
            measure_prompts(dataset, &tokenizer, selection, with_demonstrations, self.threads, &mut report);
        let lengths = lengths.map_err(|source| one.error(source))?;
        if let Some(lengths) = &lengths {
            self.measured.push(Measured {
                data: one.data.clone(),
                split: one.split,
                selection,
                tools,
                lengths: lengths.clone(),
            });
        }
        Ok(lengths)
    }
}

/// The sources of data, with names for messages.
fn named_sources<'c>(user: &str, data: &'c DataSettings) -> impl Iterator<Item = (String, &'c DataSettings)> {
    let alone = data.parts().count() == 1;
    let name = move |number: usize| {
        if alone { user.to_owned() } else { format!("{user} source {number}") }
    };
    data.parts().enumerate().map(move |(index, part)| (name(index + 1), part))
}

fn summary(
    one: &DataUse<'_>,
    tasks: u64,
    room: PromptRoom,
    counts: RowCounts,
    lengths: &[TaskLength],
) -> PromptSummary {
    let prompts = sorted(lengths.iter().map(|length| length.prompt));
    let rows = one.split.1.is_offline().then(|| {
        let completions = sorted(lengths.iter().map(|length| length.demonstration));
        RowSummary {
            kind: one.split.1.to_string(),
            prompt_p95: quantile(&prompts, 95),
            median: quantile(&completions, 50),
            p95: quantile(&completions, 95),
            longest: quantile(&completions, 100),
            tokens: lengths.iter().map(|length| length.total()).sum(),
            long: counts.long,
            no_room: counts.no_room,
            cut: counts.cut,
        }
    });
    PromptSummary {
        used_by: one.name.clone(),
        tasks,
        measured: prompts.len() as u64,
        median: quantile(&prompts, 50),
        longest: quantile(&prompts, 100),
        room: room.tokens() as u64,
        dropped: counts.long_prompts,
        rows,
    }
}

fn sorted(lengths: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut lengths: Vec<u32> = lengths.collect();
    lengths.sort_unstable();
    lengths
}

/// The length that `percent` of the sorted lengths do not exceed; the middle one for 50.
fn quantile(sorted: &[u32], percent: usize) -> u64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0).into()
}
