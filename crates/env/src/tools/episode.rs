use std::sync::Arc;

use rloom_core::ChatMessage;
use rloom_text::calls::{CallAttempt, CallStatus, Parsed, check};
use rloom_tools::{PendingCall, Toolbox, Toolset};
use serde_json::{Map, Value};

use super::counters::Counters;
use super::dialogue::{CallResult, ToolDialogue};
use super::earlier::WithoutReasoning;
use super::failed;
use super::recorded::{RecordedProblem, result_text};
use super::settings::{OnMalformed, ToolsEnvironment};
use crate::{
    BoxFuture, EnvError, Interaction, NewSegment, Next, Observation, RecordedResponse, Response, Turn,
};

/// One episode.
#[derive(Debug)]
pub(super) struct ToolEpisode {
    task: u64,
    toolbox: Toolbox,
    tools: Toolset,
    dialogue: ToolDialogue,
    settings: Arc<ToolsEnvironment>,
    counters: Arc<Counters>,
    /// The next turn begins inside of the policy's reasoning.
    reasons: bool,
    /// The episode without earlier reasoning, if a turn after reasoning begins a new segment.
    without_reasoning: Option<WithoutReasoning>,
    turns: u32,
    calls: u32,
    is_masked: bool,
}

/// An attempt of a turn with what becomes of it.
enum Fate {
    Runs(PendingCall),
    /// The error that the policy sees.
    Refused(String),
}

impl ToolEpisode {
    pub(super) fn new(
        task: u64,
        toolbox: Toolbox,
        dialogue: ToolDialogue,
        settings: Arc<ToolsEnvironment>,
        counters: Arc<Counters>,
        reasons: bool,
        without_reasoning: Option<WithoutReasoning>,
    ) -> Self {
        let tools = toolbox.open();
        Self {
            task,
            toolbox,
            tools,
            dialogue,
            settings,
            counters,
            reasons,
            without_reasoning,
            turns: 0,
            calls: 0,
            is_masked: false,
        }
    }

    fn text_error(&self, source: rloom_text::TextError) -> EnvError {
        EnvError::Text { task: self.task, source }
    }

    /// Reads a turn and checks its calls.
    fn read(&mut self, turn: &Turn) -> Result<Parsed, EnvError> {
        let declared = self.toolbox.tools();
        let mut parsed =
            self.dialogue.read(turn, self.reasons, declared).map_err(|source| self.text_error(source))?;
        check(&mut parsed.calls, declared);
        self.turns += 1;
        Ok(parsed)
    }

    /// True if the episode ends after a turn, whatever its calls would return.
    fn ends(&self, turn: &Turn, calls: &[CallAttempt]) -> bool {
        let is_malformed = is_malformed(calls);
        turn.stop.is_truncated()
            || calls.is_empty()
            || self.turns >= self.settings.max_turns
            || (is_malformed && self.settings.on_malformed == OnMalformed::End)
    }

    async fn respond(&mut self, turn: &Turn) -> Result<Response, EnvError> {
        let calls = self.read(turn)?.calls;
        for call in calls.iter().filter(|call| call.status != CallStatus::Ok) {
            self.counters.malformed(call.status.name());
        }
        let reward = self.settings.step_reward(is_malformed(&calls));
        if self.ends(turn, &calls) {
            return Ok(Response { next: Next::Done, reward });
        }
        let fates = self.begin(&calls);
        let results = self.results(&calls, fates).await?;
        let next = self.observe(turn, &results)?;
        self.is_masked = self.masks(&calls);
        Ok(Response { next, reward })
    }

    /// What follows a turn with results.
    fn observe(&mut self, turn: &Turn, results: &[CallResult]) -> Result<Next, EnvError> {
        let (tokens, reasons) =
            self.dialogue.observe(turn, results).map_err(|source| self.text_error(source))?;
        let prompt = self.drop_reasoning(turn, &tokens)?;
        self.reasons = reasons;
        Ok(match prompt {
            Some(prompt) => Next::NewSegment(NewSegment {
                prompt,
                observed: tokens.len(),
                attachments: Vec::new(),
                state: None,
            }),
            None => Next::Observation(Observation::from(tokens)),
        })
    }

    /// The prompt of a new segment, if one begins after a turn and the observation that follows it.
    fn drop_reasoning(&mut self, turn: &Turn, observation: &[u32]) -> Result<Option<Vec<u32>>, EnvError> {
        let Some(without) = &mut self.without_reasoning else { return Ok(None) };
        let prompt = without.add(&turn.tokens, self.reasons, observation);
        prompt.map_err(|source| EnvError::Text { task: self.task, source })
    }

    fn masks(&self, calls: &[CallAttempt]) -> bool {
        self.settings.on_malformed == OnMalformed::Mask && is_malformed(calls)
    }

    /// Starts the calls of a turn, all at the same time.
    fn begin(&mut self, calls: &[CallAttempt]) -> Vec<Fate> {
        let mut of_turn = 0;
        let fate = |call: &CallAttempt| match self.admit(call, &mut of_turn) {
            Ok(()) => Fate::Runs(self.tools.call(call.name.as_deref().unwrap_or_default(), arguments(call))),
            Err(refusal) => Fate::Refused(refusal),
        };
        calls.iter().map(fate).collect()
    }

    /// Counts a call if it may run, as one `of_turn` and of the episode. An error is what the policy sees in place of a result.
    fn admit(&mut self, call: &CallAttempt, of_turn: &mut u32) -> Result<(), String> {
        let ToolsEnvironment { max_calls, max_calls_per_turn, .. } = *self.settings;
        if call.status != CallStatus::Ok {
            return Err(explained(call));
        }
        for (count, limit, what) in
            [(*of_turn, max_calls_per_turn, "turn"), (self.calls, max_calls, "episode")]
        {
            if count >= limit {
                self.counters.refused();
                return Err(format!("error: at most {limit} calls are allowed in one {what}"));
            }
        }
        *of_turn += 1;
        self.calls += 1;
        Ok(())
    }

    /// Responds to a turn of a demonstration with the results that it records.
    fn respond_with(&mut self, turn: &Turn, recorded: &[ChatMessage]) -> Result<Response, EnvError> {
        let calls = self.read(turn)?.calls;
        let results = self.recorded_results(&calls, recorded)?;
        let reward = self.settings.step_reward(false);
        if self.ends(turn, &calls) {
            return Ok(Response { next: Next::Done, reward });
        }
        Ok(Response { next: self.observe(turn, &results)?, reward })
    }

    /// Recorded results of the calls of a turn. Each call must be one that would run.
    fn recorded_results(
        &mut self,
        calls: &[CallAttempt],
        recorded: &[ChatMessage],
    ) -> Result<Vec<CallResult>, EnvError> {
        let (task, turn, mut of_turn) = (self.task, self.turns, 0);
        if calls.len() != recorded.len() {
            let format = self.dialogue.format();
            let (calls, results) = (calls.len(), recorded.len());
            return Err(failed(task, RecordedProblem::Count { turn, format, calls, results }));
        }
        let mut results = Vec::new();
        for (number, (call, recorded)) in calls.iter().zip(recorded).enumerate() {
            let refused = |reason| failed(task, RecordedProblem::Refused { turn, call: number + 1, reason });
            self.admit(call, &mut of_turn).map_err(refused)?;
            let text = self.limited(&result_text(recorded))?;
            let name = call.name.clone().unwrap_or_default();
            results.push(CallResult { name, id: self.dialogue.call_id(call, number), text });
        }
        Ok(results)
    }

    /// A result within the limits of its length.
    fn limited(&self, result: &str) -> Result<String, EnvError> {
        let ToolsEnvironment { max_result_bytes, max_result_tokens, .. } = *self.settings;
        let limited = self.dialogue.limited(result, max_result_bytes, max_result_tokens);
        limited.map_err(|source| self.text_error(source))
    }

    /// The results in the order of the calls.
    async fn results(&self, calls: &[CallAttempt], fates: Vec<Fate>) -> Result<Vec<CallResult>, EnvError> {
        let mut results = Vec::new();
        for (number, (call, fate)) in calls.iter().zip(fates).enumerate() {
            let name = call.name.clone().unwrap_or_else(|| "unknown".to_owned());
            let text = match fate {
                Fate::Refused(text) => text,
                Fate::Runs(running) => {
                    let output = running.await.map_err(|error| failed(self.task, error))?;
                    self.counters.ran(&name, output.is_error);
                    self.limited(&output.text)?
                }
            };
            results.push(CallResult { name, id: self.dialogue.call_id(call, number), text });
        }
        Ok(results)
    }

    /// Continues after a turn whose results are known: only what follows depends on it.
    fn recall_turn(&mut self, turn: &Turn, observation: &[u32]) -> Result<(), EnvError> {
        let calls = self.read(turn)?.calls;
        if self.ends(turn, &calls) {
            return Ok(());
        }
        let allowed = calls.iter().filter(|call| call.status == CallStatus::Ok).count() as u32;
        let of_turn = allowed.min(self.settings.max_calls_per_turn);
        self.calls = (self.calls + of_turn).min(self.settings.max_calls);
        let result = |(number, call): (usize, &CallAttempt)| CallResult {
            name: call.name.clone().unwrap_or_else(|| "unknown".to_owned()),
            id: self.dialogue.call_id(call, number),
            text: String::new(),
        };
        let results: Vec<CallResult> = calls.iter().enumerate().map(result).collect();
        self.dialogue.observe(turn, &results).map_err(|source| self.text_error(source))?;
        self.drop_reasoning(turn, observation)?;
        self.reasons =
            self.dialogue.ends_in_reasoning(observation).map_err(|source| self.text_error(source))?;
        Ok(())
    }
}

impl Interaction for ToolEpisode {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        Box::pin(self.respond(turn))
    }

    fn recall<'a>(
        &'a mut self,
        turn: &'a Turn,
        recorded: &'a RecordedResponse,
    ) -> BoxFuture<'a, Result<(), EnvError>> {
        let observation = match &recorded.segment {
            Some(segment) => segment.prompt.get(segment.prompt.len().saturating_sub(segment.observed)..),
            None => recorded.observation.as_deref(),
        };
        Box::pin(std::future::ready(self.recall_turn(turn, observation.unwrap_or_default())))
    }

    fn step_with_results<'a>(
        &'a mut self,
        turn: &'a Turn,
        results: &'a [ChatMessage],
    ) -> BoxFuture<'a, Result<Option<Response>, EnvError>> {
        Box::pin(std::future::ready(self.respond_with(turn, results).map(Some)))
    }

    fn masks_turn(&self) -> bool {
        self.is_masked
    }
}

fn is_malformed(calls: &[CallAttempt]) -> bool {
    calls.iter().any(|call| call.status != CallStatus::Ok)
}

fn arguments(call: &CallAttempt) -> Map<String, Value> {
    call.arguments.as_object().cloned().unwrap_or_default()
}

/// The error of a malformed call, for the policy.
fn explained(call: &CallAttempt) -> String {
    let problem = call.problem.as_deref().unwrap_or(match call.status {
        CallStatus::InvalidJson => "the arguments are not valid JSON",
        CallStatus::UnclosedBlock => "the end of the call is missing",
        CallStatus::MissingName => "the name of the tool is missing",
        _ => "the call is not in the right format",
    });
    format!("error: {problem}")
}
