//! One completion, over weight updates and lost workers.

use std::pin::pin;

use rloom_core::StopReason;
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutError, SampledToken, TokenSink};

use crate::bounded::BoundedEngine;
use crate::stopping::Stopping;

/// Losses of a completion with its worker, one after another, after which it fails: the request may be their cause.
const LOSSES: u32 = 16;

/// Generates one completion. If a weight update aborts it, it continues from its tokens; when the run stops,
/// the incomplete completion is returned. A request that is lost with its worker is submitted again, [`LOSSES`] times.
///
/// The request's sink receives each token once, over all submissions. If a lost completion has other tokens when it is sampled
/// again than the sink has received, the loss is the result.
pub(crate) async fn complete<E: RolloutEngine>(
    engine: &BoundedEngine<E>,
    stopping: &Stopping,
    request: GenerateRequest,
    mut generated: Option<Generation>,
    on_interrupt: &(dyn Fn(&Generation) + Sync),
) -> Result<Generation, RolloutError> {
    let mut losses = 0;
    let mut last_loss = None;
    let mut sent = request.sink.clone().map(Sent::to);
    loop {
        let mut request = request.clone();
        if let Some(generated) = &generated {
            request.prefix.clone_from(&generated.tokens);
        }
        let part = match &mut sent {
            None => engine.engine().generate(request).await,
            Some(sent) => match sent.pass(engine.engine().as_ref(), request).await {
                Ok(result) => result,
                Err(OtherTokens) => return Err(last_loss.unwrap_or(RolloutError::ShutDown)),
            },
        };
        let part = match part {
            Ok(part) => part,
            Err(error) if error.is_retryable() && losses < LOSSES => {
                losses += 1;
                last_loss = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let whole = match generated.take() {
            Some(before) => before.then(part),
            None => part,
        };
        if whole.stop != StopReason::Aborted || stopping.is_set() {
            return Ok(whole);
        }
        on_interrupt(&whole);
        generated = Some(whole);
    }
}

/// Tokens of a completion that its sink has received.
struct Sent {
    sink: TokenSink,
    tokens: Vec<u32>,
}

/// A completion that differs from what its sink has received.
struct OtherTokens;

impl Sent {
    fn to(sink: TokenSink) -> Self {
        Self { sink, tokens: Vec::new() }
    }

    /// Submits a request and passes on what is new in its tokens.
    async fn pass<E: RolloutEngine>(
        &mut self,
        engine: &E,
        request: GenerateRequest,
    ) -> Result<Result<Generation, RolloutError>, OtherTokens> {
        let (sink, mut tokens) = TokenSink::channel();
        let mut at = request.prefix.len();
        let mut completion = pin!(engine.generate(GenerateRequest { sink: Some(sink), ..request }));
        let first = at;
        let result = loop {
            tokio::select! {
                biased;
                Some(token) = tokens.recv() => {
                    self.add(at, token)?;
                    at += 1;
                }
                result = &mut completion => break result,
            }
        };
        while let Ok(token) = tokens.try_recv() {
            self.add(at, token)?;
            at += 1;
        }
        let Ok(part) = &result else { return Ok(result) };
        // What the engine did not send while it sampled.
        for (&token, &logprob) in part.tokens.iter().zip(&part.logprobs).skip(at - first) {
            self.add(at, SampledToken { token, logprob })?;
            at += 1;
        }
        let is_shorter = at < self.tokens.len() && part.stop != StopReason::Aborted;
        if is_shorter { Err(OtherTokens) } else { Ok(result) }
    }

    fn add(&mut self, at: usize, sampled: SampledToken) -> Result<(), OtherTokens> {
        match self.tokens.get(at) {
            Some(token) if *token == sampled.token => {}
            Some(_) => return Err(OtherTokens),
            None => {
                self.tokens.push(sampled.token);
                self.sink.send(sampled);
            }
        }
        Ok(())
    }
}
