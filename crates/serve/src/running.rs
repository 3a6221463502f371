//! A completion in flight.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Purpose, RandomKey, StopReason};
use rloom_engine::{GenerateRequest, Generation, ReusedTokens, RolloutError, SampledToken, TokenSink};
use rloom_text::TextError;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::ask::{Ask, Input};
use crate::model::ServedModel;
use crate::problem::{Problem, ProblemKind};
use crate::prompt::{Prompt, room};
use crate::reply::{Reader, Update, Usage};
use crate::sampler::{Completion, Sampler};

/// Attempts for a completion whose worker fails. Later ones continue after the tokens of the earlier ones.
const ATTEMPTS: u32 = 3;

/// A prepared request: its prompt, the engine's request and the reader of its tokens.
#[derive(Debug)]
pub(crate) struct Prepared {
    request: GenerateRequest,
    reader: Reader,
    logprobs: bool,
    attempts: Attempts,
}

/// Treatment of a completion whose worker fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempts {
    /// The rest is sampled by another request: only the text of the completion matters.
    Continued,
    /// It is sampled again, unless a client may have seen tokens: the completion is recorded as one.
    Whole { streams: bool },
}

impl Prepared {
    /// Tokenises a request and checks its settings; returns its completions. May take long.
    pub(crate) fn new(
        model: &Arc<ServedModel>,
        ask: Ask,
        number: u64,
        id: &str,
        timeout: Duration,
    ) -> Result<Vec<Self>, Problem> {
        let prompt = Prompt::of(model, &ask)?;
        let room = room(model, prompt.tokens.len(), ask.input_field)?;
        let sampling = ask.sampling.resolve(model, room)?;
        let key = match ask.sampling.seed {
            Some(seed) => RandomKey::new(seed, 0, Purpose::Interactive, 0),
            None => RandomKey::new(model.seed, 0, Purpose::Interactive, number),
        };
        let tools = match ask.input {
            Input::Conversation(conversation) => Some(conversation.tools),
            Input::Text(_) | Input::Tokens(_) => None,
        };
        (0..ask.choices)
            .map(|choice| {
                let (tools, stop) = (tools.clone(), sampling.stop.clone());
                let reader = Reader::new(model, tools, stop, prompt.reasons, choice_id(id, choice))
                    .map_err(|error| failed(&error))?;
                let key = RandomKey { sample: choice, ..key };
                let request = GenerateRequest {
                    stop_tokens: Arc::clone(&model.stop_tokens),
                    timeout: Some(timeout),
                    group: (ask.choices > 1).then_some(number),
                    ..GenerateRequest::new(key, Arc::clone(&prompt.tokens), sampling.clone())
                };
                Ok(Self { request, reader, logprobs: ask.logprobs, attempts: Attempts::Continued })
            })
            .collect()
    }

    /// A request of a session. `streams`: tokens are read while they are sampled.
    pub(crate) fn of_session(
        request: GenerateRequest,
        reader: Reader,
        logprobs: bool,
        streams: bool,
    ) -> Self {
        Self { request, reader, logprobs, attempts: Attempts::Whole { streams } }
    }
}

/// Unique part of the identifiers of one reply of an answer.
pub(crate) fn choice_id(id: &str, choice: u32) -> String {
    if choice == 0 { id.to_owned() } else { format!("{id}c{choice}") }
}

/// A submitted request. Dropping it cancels the completion.
pub(crate) struct Running {
    sampler: Arc<dyn Sampler>,
    request: GenerateRequest,
    completion: Completion,
    tokens: UnboundedReceiver<SampledToken>,
    /// Tokens of this attempt that were read.
    read: usize,
    attempt: u32,
    attempts: Attempts,
    reader: Reader,
    logprobs: bool,
    prompt_tokens: usize,
    /// Tokens of the prompt that were not computed.
    reused: ReusedTokens,
    /// The completion, once it has ended.
    generation: Option<Generation>,
    ended_in_reasoning: bool,
}

impl Running {
    pub(crate) fn start(sampler: Arc<dyn Sampler>, prepared: Prepared) -> Self {
        let Prepared { mut request, reader, logprobs, attempts } = prepared;
        let reused = ReusedTokens::default();
        request.reused = Some(reused.clone());
        let (completion, tokens) = submit(&sampler, &request, attempts);
        Self {
            prompt_tokens: request.prompt.len(),
            reused,
            sampler,
            request,
            completion,
            tokens,
            read: 0,
            attempt: 1,
            attempts,
            reader,
            logprobs,
            generation: None,
            ended_in_reasoning: false,
        }
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens that were sampled and read.
    pub(crate) fn sampled_tokens(&self) -> usize {
        self.request.prefix.len()
    }

    /// The completion, once it has ended. That of a request that was continued has the tokens of the last part alone.
    pub(crate) fn take_generation(&mut self) -> Option<Generation> {
        self.generation.take()
    }

    /// True if the completion ended inside of the model's reasoning.
    pub(crate) fn ended_in_reasoning(&self) -> bool {
        self.ended_in_reasoning
    }

    /// Text that was sampled after the answer: a stop string.
    pub(crate) fn tail(&self) -> &str {
        self.reader.tail()
    }

    /// Waits for more of the answer. Cancel-safe. Not called again after an update with an end, or an error.
    pub(crate) async fn next(&mut self) -> Result<Update, Problem> {
        loop {
            tokio::select! {
                biased;
                Some(token) = self.tokens.recv() => {
                    let mut update = Update::default();
                    self.read(token, &mut update)?;
                    self.read_arrived(&mut update)?;
                    if !update.parts.is_empty() || !update.scored.is_empty() {
                        return Ok(update);
                    }
                }
                result = &mut self.completion => {
                    let mut update = Update::default();
                    self.read_arrived(&mut update)?;
                    match result {
                        Ok(generation) => return self.end(generation, update),
                        Err(error) => self.retry(&error)?,
                    }
                    if !update.parts.is_empty() || !update.scored.is_empty() {
                        return Ok(update);
                    }
                }
            }
        }
    }

    /// Reads the tokens that have arrived.
    fn read_arrived(&mut self, update: &mut Update) -> Result<(), Problem> {
        while let Ok(token) = self.tokens.try_recv() {
            self.read(token, update)?;
        }
        Ok(())
    }

    fn read(&mut self, sampled: SampledToken, update: &mut Update) -> Result<(), Problem> {
        self.read += 1;
        self.request.prefix.push(sampled.token);
        if self.logprobs {
            update.scored.push(self.reader.scored(sampled).map_err(|error| failed(&error))?);
        }
        self.reader.push(sampled.token, &mut update.parts).map_err(|error| failed(&error))
    }

    /// Submits the rest of a completion whose worker has failed.
    fn retry(&mut self, error: &RolloutError) -> Result<(), Problem> {
        let is_seen = self.attempts != Attempts::Continued && self.read > 0;
        if !error.is_retryable() || self.attempt == ATTEMPTS || is_seen {
            return Err(Problem::of_engine(error));
        }
        self.attempt += 1;
        self.read = 0;
        (self.completion, self.tokens) = submit(&self.sampler, &self.request, self.attempts);
        Ok(())
    }

    /// Reads what the engine did not send while it sampled, and ends the answer.
    fn end(&mut self, generation: Generation, mut update: Update) -> Result<Update, Problem> {
        if generation.stop == StopReason::Aborted {
            return Err(Problem::new(ProblemKind::Unavailable, "the completion was aborted"));
        }
        let sent = &self.request.prefix[self.request.prefix.len() - self.read..];
        if !generation.tokens.starts_with(sent) {
            let message = "the engine has sent tokens that are no part of its completion";
            return Err(Problem::new(ProblemKind::Failed, message));
        }
        for (&token, &logprob) in generation.tokens.iter().zip(&generation.logprobs).skip(self.read) {
            self.read(SampledToken { token, logprob }, &mut update)?;
        }
        self.ended_in_reasoning = self.reader.is_reasoning();
        let finish =
            self.reader.finish(generation.stop, &mut update.parts).map_err(|error| failed(&error))?;
        let usage = Usage {
            prompt: self.prompt_tokens,
            cached: self.reused.get(),
            completion: self.sampled_tokens(),
            reasoning: self.reader.reasoning_tokens(),
        };
        update.end = Some((finish, usage));
        self.generation = Some(generation);
        Ok(update)
    }
}

/// Submits a request with a new channel for its tokens. What is not streamed is read at the end alone.
fn submit(
    sampler: &Arc<dyn Sampler>,
    request: &GenerateRequest,
    attempts: Attempts,
) -> (Completion, UnboundedReceiver<SampledToken>) {
    let (sink, tokens) = TokenSink::channel();
    let sink = Some(sink).filter(|_| attempts != Attempts::Whole { streams: false });
    let request = GenerateRequest { sink, ..request.clone() };
    (Arc::clone(sampler).generate(request), tokens)
}

fn failed(error: &TextError) -> Problem {
    Problem::new(ProblemKind::Failed, error.to_string())
}
