use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Attachment, OnUpdate, PolicyId, PolicyVersion, Purpose, RandomKey, StopReason};
use tokio::time::timeout;

use super::{Verdict, Violation, require};
use crate::{
    Abort, Form, GenerateRequest, Generation, Health, InvalidReason, PublishedPolicy, PublishedWeights,
    RolloutCapabilities, RolloutEngine, RolloutError, SamplingSettings, TokenSink, VersionGranularity,
    WeightFolder,
};

/// The trainer that a rollout engine is compared with.
pub trait ReferenceTrainer {
    /// Publishes weights in the engine's preferred form: one model for even versions, another for odd ones. Both have
    /// the token ids 1 to 9.
    fn publish(&self, policy: PolicyId, version: PolicyVersion) -> PublishedPolicy;

    /// Log-probabilities of a completion's tokens by the weights of a version.
    fn logprobs(
        &self,
        version: PolicyVersion,
        request: &GenerateRequest,
        completion: &Generation,
    ) -> Vec<f32>;
}

/// Attempts for a request that is answered with retryable errors.
const ATTEMPTS: usize = 50;
/// Rounds in which an update or an abort may come too late to meet a running completion.
const ROUNDS: u64 = 30;
/// Rounds in which updates and aborts are repeated even if they have met one.
const LEAST_ROUNDS: u64 = 6;

/// The conformance suite of rollout engines.
#[derive(Debug)]
pub struct RolloutSuite<'a, E, T> {
    engine: &'a E,
    trainer: &'a T,
    capabilities: RolloutCapabilities,
    tolerance: f32,
    patience: Duration,
}

impl<'a, E: RolloutEngine, T: ReferenceTrainer> RolloutSuite<'a, E, T> {
    /// A suite for an engine without weights. `tolerance` bounds the difference between reported and trained
    /// log-probabilities; it is 0 for engines that report a numeric path.
    pub fn new(engine: &'a E, trainer: &'a T, tolerance: f32) -> Self {
        let capabilities = engine.capabilities();
        let tolerance = if capabilities.numeric_path.is_some() { 0.0 } else { tolerance };
        Self { engine, trainer, capabilities, tolerance, patience: Duration::from_mins(2) }
    }

    /// Changes the longest wait for any answer.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Runs all checks and returns the first violation.
    pub async fn run(&self) -> Verdict {
        self.requests_wait_for_weights().await?;
        self.answers_are_well_formed().await?;
        self.stops_and_prefixes().await?;
        self.sinks_receive_first_tokens().await?;
        self.invalid_requests_are_refused().await?;
        self.unsupported_loads_are_refused().await?;
        self.dropped_futures_cancel().await?;
        self.timeouts_hold().await?;
        self.aborted_requests_resume().await?;
        for &on_update in &self.capabilities.on_update {
            self.updates_in_flight(on_update).await.map_err(|v| v.during(on_update.name()))?;
        }
        self.released_weights_are_free().await?;
        self.tokens_name_their_policy().await
    }

    fn publish(&self, version: u64) -> PublishedPolicy {
        self.trainer.publish(PolicyId::MAIN, PolicyVersion(version))
    }

    async fn load(&self, version: u64, on_update: OnUpdate) -> Verdict {
        let published = self.publish(version);
        self.soon("a load", self.engine.load(&published, on_update)).await?.map_err(failed)?;
        let health = self.health().await?;
        require(health.loaded.contains(&published.label()), || {
            format!("after version {version} was loaded, {:?} is in use", health.loaded)
        })
    }

    async fn health(&self) -> Result<Health, Violation> {
        let health = self.soon("health", self.engine.health(self.patience)).await?.map_err(failed)?;
        let limit = self.capabilities.max_running;
        require(health.running <= limit, || {
            format!("{} requests run instead of at most {limit}", health.running)
        })?;
        Ok(health)
    }

    /// Completes a request, which is submitted again after retryable errors.
    async fn complete(&self, request: &GenerateRequest) -> Result<Generation, Violation> {
        self.answer(request, self.engine.generate(request.clone())).await
    }

    /// The answer to a submitted request.
    async fn answer(
        &self,
        request: &GenerateRequest,
        submitted: impl Future<Output = Result<Generation, RolloutError>>,
    ) -> Result<Generation, Violation> {
        let mut answer = self.soon("a completion", submitted).await?;
        for _ in 0..ATTEMPTS {
            match answer {
                Err(error) if error.is_retryable() => {}
                other => return other.map_err(failed),
            }
            answer = self.soon("a completion", self.engine.generate(request.clone())).await?;
        }
        Err(Violation::new(format!("{ATTEMPTS} retryable errors for one request")))
    }

    /// Submits all requests at once and completes them.
    async fn complete_all(&self, requests: &[GenerateRequest]) -> Result<Vec<Generation>, Violation> {
        let submitted: Vec<_> = requests.iter().map(|r| self.engine.generate(r.clone())).collect();
        let mut completions = Vec::with_capacity(requests.len());
        for (request, submitted) in requests.iter().zip(submitted) {
            completions.push(self.answer(request, submitted).await?);
        }
        Ok(completions)
    }

    /// Waits until no request runs or waits.
    async fn quiet(&self) -> Verdict {
        let quiet = async {
            loop {
                let health = self.health().await?;
                if health.running + health.waiting == 0 {
                    return Ok(());
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(self.patience, quiet).await.map_err(|_| Violation::new("cancelled requests continue"))?
    }

    /// Checks a completion: one log-probability per token, each that of the version named by its span; spans without gaps
    /// and with increasing versions. After an update that mixes versions, only the first span is compared.
    fn check(&self, request: &GenerateRequest, made: &Generation, on_update: Option<OnUpdate>) -> Verdict {
        require(made.tokens.len() == made.logprobs.len(), || "log-probabilities are missing".to_owned())?;
        require(made.logprobs.iter().all(|l| l.is_finite() && *l <= self.tolerance), || {
            format!("log-probabilities {:?}", made.logprobs)
        })?;
        require(made.temperature == request.sampling.reported_temperature(), || {
            format!("reports temperature {}", made.temperature)
        })?;
        let per_reply = self.capabilities.versions == VersionGranularity::PerReply;
        require(!per_reply || made.versions.len() <= 1, || {
            format!("several versions in a reply: {:?}", made.versions)
        })?;
        let mixes = on_update.is_some_and(|policy| self.capabilities.mixes_versions.contains(&policy));
        let (mut at, mut last) = (0, None);
        for (place, span) in made.versions.iter().enumerate() {
            let in_order = span.range.start == at && span.range.end > at && last < Some(span.version);
            require(in_order && span.policy == request.policy, || format!("spans {:?}", made.versions))?;
            (at, last) = (span.range.end, Some(span.version));
            if mixes && (place > 0 || per_reply) {
                continue;
            }
            let trained = self.trainer.logprobs(span.version, request, made);
            let pairs = made.logprobs[span.range.clone()].iter().zip(&trained[span.range.clone()]);
            let worst = pairs.map(|(sampled, trained)| (sampled - trained).abs()).fold(0.0, f32::max);
            require(worst <= self.tolerance, || {
                format!("log-probabilities of version {} are off by {worst}", span.version.0)
            })?;
        }
        require(at == made.tokens.len(), || {
            format!("spans {:?} for {} tokens", made.versions, made.tokens.len())
        })
    }

    /// Checks a completion that was not interrupted by an update.
    fn check_whole(&self, request: &GenerateRequest, made: &Generation, version: u64) -> Verdict {
        self.check(request, made, None)?;
        let all = made.versions.iter().all(|span| span.version.0 == version);
        require(all, || format!("{:?} instead of version {version} alone", made.versions))
    }

    /// Guarantee 3: requests wait for the first weights, unless they are cancelled or time out before.
    async fn requests_wait_for_weights(&self) -> Verdict {
        require(self.health().await?.loaded.is_empty(), || "has weights before the first load".to_owned())?;
        require(!self.engine.workers().is_empty(), || "reports no workers".to_owned())?;
        let first = request(0, 0, 6);
        let early = self.engine.generate(first.clone());
        drop(self.engine.generate(request(0, 1, 6)));
        let short = GenerateRequest { timeout: Some(Duration::from_millis(20)), ..request(0, 2, 6) };
        let late = self.soon("a request with a timeout", self.engine.generate(short)).await?;
        require(matches!(late, Err(RolloutError::Timeout { .. })), || format!("past its timeout: {late:?}"))?;
        let waiting = self.health().await?.waiting;
        require(waiting == 1, || format!("cancelled requests continue: {waiting} instead of 1 wait"))?;
        self.load(2, OnUpdate::Finish).await?;
        let early = self.answer(&first, early).await?;
        self.check_whole(&first, &early, 2)
    }

    /// Guarantees 1 and 4, and that statistics count what was sampled.
    async fn answers_are_well_formed(&self) -> Verdict {
        let before = self.engine.statistics().sampled_tokens;
        let requests: Vec<_> = (0..8).map(|sample| request(1, sample, 12)).collect();
        let made = self.complete_all(&requests).await?;
        for (request, made) in requests.iter().zip(&made) {
            self.check_whole(request, made, 2)?;
            require(made.stop == StopReason::Length && made.tokens.len() == 12, || format!("{made:?}"))?;
        }
        require(made.windows(2).any(|pair| pair[0].tokens != pair[1].tokens), || {
            "all samples are equal".to_owned()
        })?;
        if self.capabilities.batch_invariant {
            // Alone, and in another order.
            require(self.complete(&requests[3]).await? == made[3], || {
                "the result differs when the request is alone".to_owned()
            })?;
            let ranked = requests.iter().zip((0..8u64).rev());
            let ranked: Vec<_> =
                ranked.map(|(r, priority)| GenerateRequest { priority, group: None, ..r.clone() }).collect();
            require(self.complete_all(&ranked).await? == made, || {
                "priorities or groups changed a result".to_owned()
            })?;
        }
        let mut filtered = request(2, 0, 12);
        filtered.sampling = SamplingSettings { temperature: 0.7, top_k: 3, top_p: 0.8, ..filtered.sampling };
        let mut greedy = request(2, 1, 12);
        greedy.sampling.temperature = 0.0;
        for request in [filtered, greedy] {
            self.check_whole(&request, &self.complete(&request).await?, 2)?;
        }
        self.quiet().await?;
        let sampled = self.engine.statistics().sampled_tokens - before;
        require(sampled >= 8 * 12, || format!("statistics count {sampled} of at least 96 sampled tokens"))
    }

    async fn stops_and_prefixes(&self) -> Verdict {
        let whole_request = request(1, 0, 12);
        let whole = self.complete(&whole_request).await?;
        let stop = whole.tokens[5];
        let stopping = GenerateRequest { stop_tokens: Arc::from([stop]), ..whole_request.clone() };
        let stopped = self.complete(&stopping).await?;
        if self.capabilities.batch_invariant {
            let end = whole.tokens.iter().position(|&t| t == stop).map_or(0, |at| at + 1);
            require(stopped.tokens == whole.tokens[..end], || {
                "a stop token changed other tokens".to_owned()
            })?;
        }
        require(
            stopped.stop == StopReason::Length
                || (stopped.stop == StopReason::StopToken && stopped.tokens.last() == Some(&stop)),
            || format!("a stop token gave {stopped:?}"),
        )?;
        let mut held = stopping.clone();
        held.sampling.min_new_tokens = 12;
        let held = self.complete(&held).await?;
        require(held.tokens.len() == 12 && !held.tokens[..11].contains(&stop), || {
            format!("a stop token before min_new_tokens: {:?}", held.tokens)
        })?;
        let resumed = GenerateRequest { prefix: whole.tokens[..4].to_vec(), ..whole_request };
        let rest = self.complete(&resumed).await?;
        self.check_whole(&resumed, &rest, 2)?;
        require(rest.tokens.len() == 8, || {
            format!("{} tokens after a prefix of 4 of 12", rest.tokens.len())
        })?;
        let complete = GenerateRequest { prefix: whole.tokens.clone(), ..resumed };
        let none = self.complete(&complete).await?;
        require(none.tokens.is_empty() && none.stop == StopReason::Length, || {
            format!("a full prefix: {none:?}")
        })
    }

    /// What a sink receives are the first tokens of the completion, without the prefix; also of one that is aborted.
    async fn sinks_receive_first_tokens(&self) -> Verdict {
        let whole = self.complete(&request(1, 0, 12)).await?;
        let resumed = GenerateRequest { prefix: whole.tokens[..4].to_vec(), ..request(1, 0, 12) };
        for (plain, is_aborted) in [(request(1, 0, 12), false), (resumed, false), (self.long(13, 0), true)] {
            // A sink belongs to one submission.
            for _ in 0..ATTEMPTS {
                let (sink, mut tokens) = TokenSink::channel();
                let submitted = GenerateRequest { sink: Some(sink), ..plain.clone() };
                let answer = self.engine.generate(submitted);
                if is_aborted {
                    self.until_running().await?;
                    self.soon("an abort", self.engine.abort(Abort::Group(13))).await?.map_err(failed)?;
                }
                let made = match self.soon("a completion", answer).await? {
                    Err(error) if error.is_retryable() => continue,
                    answer => answer.map_err(failed)?,
                };
                let mut received = Vec::new();
                while let Ok(token) = tokens.try_recv() {
                    received.push(token);
                }
                let sampled = made.tokens.iter().zip(&made.logprobs);
                let is_first = received.len() <= made.tokens.len()
                    && received.iter().zip(sampled).all(|(sent, own)| (&sent.token, &sent.logprob) == own);
                require(is_first, || {
                    format!("a sink received {received:?}, which {:?} does not begin with", made.tokens)
                })?;
                break;
            }
        }
        Ok(())
    }

    async fn invalid_requests_are_refused(&self) -> Verdict {
        type Expected = fn(&InvalidReason) -> bool;
        let empty = GenerateRequest { prompt: Arc::from([]), ..request(3, 0, 4) };
        let overfull = GenerateRequest { prefix: vec![1; 5], ..request(3, 1, 4) };
        let long = request(3, 2, self.capabilities.context);
        let elsewhere = GenerateRequest { policy: PolicyId(u32::MAX), ..request(3, 3, 4) };
        let image = Attachment { media_type: "image/none".to_owned(), position: 0, data: Arc::from([0]) };
        let attached = GenerateRequest { attachments: vec![image], ..request(3, 4, 4) };
        let mut cases: Vec<(&str, GenerateRequest, Expected)> = vec![
            ("an empty prompt", empty, |r| matches!(r, InvalidReason::EmptyPrompt)),
            ("a long prefix", overfull, |r| matches!(r, InvalidReason::PrefixTooLong { .. })),
            ("a long request", long, |r| matches!(r, InvalidReason::TooLong { .. })),
            ("an unknown policy", elsewhere, |r| matches!(r, InvalidReason::UnknownPolicy { .. })),
        ];
        if !self.capabilities.attachments {
            cases.push(("an attachment", attached, |r| matches!(r, InvalidReason::Attachment { .. })));
        }
        if !self.capabilities.stop_strings {
            let mut stopping = request(3, 5, 4);
            stopping.sampling.stop = vec!["x".to_owned()];
            cases.push(("a stop string", stopping, |r| matches!(r, InvalidReason::NoTokenizer)));
        }
        for (name, bad, expected) in cases {
            let answer = self.soon("a refusal", self.engine.generate(bad)).await?;
            let refused =
                matches!(&answer, Err(RolloutError::InvalidRequest { reason, .. }) if expected(reason));
            require(refused, || format!("{name} was not refused: {answer:?}"))?;
        }
        Ok(())
    }

    /// Loads that must fail leave the loaded weights in use.
    async fn unsupported_loads_are_refused(&self) -> Verdict {
        if !self.capabilities.forms.contains(&Form::Adapter) {
            let before = self.publish(3);
            let weights = PublishedWeights::Adapter(Arc::new(WeightFolder::kept("adapter")));
            let published = PublishedPolicy { weights, ..before };
            let answer = self.soon("a refusal", self.engine.load(&published, OnUpdate::Finish)).await?;
            require(matches!(answer, Err(RolloutError::UnsupportedForm { .. })), || {
                format!("weights in an unsupported form: {answer:?}")
            })?;
        }
        if self.capabilities.policies == 1 {
            let second = self.trainer.publish(PolicyId(1), PolicyVersion(3));
            let answer = self.soon("a refusal", self.engine.load(&second, OnUpdate::Finish)).await?;
            require(matches!(answer, Err(RolloutError::TooManyPolicies { .. })), || {
                format!("a second policy: {answer:?}")
            })?;
        }
        let kept = request(3, 9, 4);
        self.check_whole(&kept, &self.complete(&kept).await?, 2)
    }

    /// Guarantee 2.
    async fn dropped_futures_cancel(&self) -> Verdict {
        // Enough requests that they cannot all complete before the next call.
        let futures: Vec<_> = (0..200).map(|sample| self.engine.generate(self.long(4, sample))).collect();
        drop(futures);
        let health = self.health().await?;
        let next = request(4, 900, 6);
        self.check_whole(&next, &self.complete(&next).await?, 2)?;
        self.quiet().await?;
        require(health.version(PolicyId::MAIN) == Some(PolicyVersion(2)), || format!("{health:?}"))
    }

    /// Guarantee 1 for short timeouts: an answer or the right error, and the request ends.
    async fn timeouts_hold(&self) -> Verdict {
        for micros in [0, 300, 3000] {
            let hurried = GenerateRequest { timeout: Some(Duration::from_micros(micros)), ..self.long(5, 0) };
            match self.soon("a request with a timeout", self.engine.generate(hurried.clone())).await? {
                Ok(made) => self.check_whole(&hurried, &made, 2)?,
                Err(RolloutError::Timeout { .. }) => {}
                Err(error) if error.is_retryable() => {}
                Err(other) => return Err(Violation::new(format!("past its timeout: {other}"))),
            }
        }
        self.quiet().await
    }

    /// Aborts of a group, a request and everything: each selected request answers with the tokens it has, from which
    /// it resumes; others are not affected.
    async fn aborted_requests_resume(&self) -> Verdict {
        let mut interrupted = 0;
        for round in 0..ROUNDS {
            if round >= LEAST_ROUNDS && interrupted > 0 {
                break;
            }
            let requests: Vec<_> = (0..3).map(|sample| self.long(100 + round, sample)).collect();
            let other = request(7, round as u32, 12);
            let futures: Vec<_> = requests.iter().map(|r| self.engine.generate(r.clone())).collect();
            let other_answer = self.engine.generate(other.clone());
            let first = requests[0].key;
            let which = [Abort::Group(100 + round), Abort::Request(first), Abort::All][round as usize % 3];
            self.soon("an abort", self.engine.abort(which)).await?.map_err(failed)?;
            for (request, future) in requests.iter().zip(futures) {
                let is_selected = which.selects(request.group, request.key);
                // The abort has completed, so the answer is available.
                let wait = if is_selected { Duration::ZERO } else { self.patience };
                let answer = timeout(wait, future).await;
                let answer = answer.map_err(|_| Violation::new(format!("{which:?} aborted nothing")))?;
                let part = match answer {
                    Err(error) if error.is_retryable() => continue,
                    other => other.map_err(failed)?,
                };
                self.check_whole(request, &part, 2)?;
                if part.stop != StopReason::Aborted {
                    continue;
                }
                require(is_selected, || format!("{which:?} aborted another request: {:?}", request.key))?;
                interrupted += 1;
                let rest = GenerateRequest { prefix: part.tokens.clone(), ..request.clone() };
                let joined = part.then(self.complete(&rest).await?);
                self.check_whole(request, &joined, 2)?;
                if self.capabilities.batch_invariant {
                    require(joined == self.complete(request).await?, || {
                        "an abort changed the completion".to_owned()
                    })?;
                }
            }
            let other_answer = self.answer(&other, other_answer).await?;
            if which != Abort::All {
                require(other_answer.stop != StopReason::Aborted, || {
                    format!("{which:?} aborted another request: {:?}", other.key)
                })?;
            }
        }
        require(interrupted > 0, || format!("all completions were over before {ROUNDS} aborts"))
    }

    /// Weights that are loaded while completions are in flight.
    async fn updates_in_flight(&self, on_update: OnUpdate) -> Verdict {
        let is_observable =
            self.capabilities.versions == VersionGranularity::PerToken || on_update == OnUpdate::Abort;
        // Completions may also keep the weights that they began with, instead of mixing two versions.
        let keeps_own =
            on_update == OnUpdate::Keep && !self.capabilities.mixes_versions.contains(&OnUpdate::Keep);
        let mut interrupted = on_update == OnUpdate::Finish || keeps_own || !is_observable;
        for round in 0..ROUNDS {
            if round >= LEAST_ROUNDS && interrupted {
                break;
            }
            let (old, new) = (10 + 2 * round, 11 + 2 * round);
            self.load(old, OnUpdate::Finish).await?;
            let requests: Vec<_> = (0..4).map(|sample| self.long(200 + round, sample)).collect();
            let futures: Vec<_> = requests.iter().map(|r| self.engine.generate(r.clone())).collect();
            if round % 2 == 0 {
                self.until_running().await?;
            }
            let newer = self.publish(new);
            let loading = self.engine.load(&newer, on_update);
            let late_request = request(8, round as u32, 12);
            let late = self.engine.generate(late_request.clone());
            self.soon("a load", loading).await?.map_err(failed)?;
            let loaded = self.health().await?.loaded;
            require(loaded.contains(&newer.label()), || format!("{loaded:?} is in use after the load"))?;
            for (request, future) in requests.iter().zip(futures) {
                let answer = self.soon("a completion in flight", future).await?;
                let made = match answer {
                    Err(error) if error.is_retryable() => continue,
                    other => other.map_err(failed)?,
                };
                self.check(request, &made, Some(on_update))?;
                let is_aborted = made.stop == StopReason::Aborted;
                interrupted |= is_aborted || made.versions.len() > 1;
                require(!is_aborted || on_update == OnUpdate::Abort, || {
                    "a completion was aborted".to_owned()
                })?;
                let has_one = made.versions.len() <= 1;
                require(has_one || matches!(on_update, OnUpdate::Keep | OnUpdate::Recompute), || {
                    format!("several versions: {:?}", made.versions)
                })?;
            }
            let late = self.answer(&late_request, late).await?;
            self.check_whole(&late_request, &late, new)?;
        }
        require(interrupted, || format!("all completions were over before {ROUNDS} updates"))?;
        // Of two loads at once both complete, and the last one stays.
        let (one, two) = (self.publish(80), self.publish(81));
        let long = self.long(9, 0);
        let running = self.engine.generate(long.clone());
        let first = self.engine.load(&one, OnUpdate::Finish);
        let second = self.engine.load(&two, on_update);
        self.soon("a load", second).await?.map_err(failed)?;
        self.soon("a load that was superseded", first).await?.map_err(failed)?;
        match self.soon("a completion in flight", running).await? {
            Err(error) if error.is_retryable() => {}
            running => self.check(&long, &running.map_err(failed)?, Some(on_update))?,
        }
        let loaded = self.health().await?.loaded;
        require(loaded.contains(&two.label()), || "the last load did not stay".to_owned())
    }

    async fn released_weights_are_free(&self) -> Verdict {
        let newest = self.publish(90);
        let handles = |published: &PublishedPolicy| match &published.weights {
            PublishedWeights::Memory(weights) => weights.handles(),
            PublishedWeights::Folder(folder) | PublishedWeights::Adapter(folder) => Arc::strong_count(folder),
            PublishedWeights::Live(_) => 1,
        };
        let before = handles(&newest);
        self.soon("a load", self.engine.load(&newest, OnUpdate::Finish)).await?.map_err(failed)?;
        let long = self.long(10, 0);
        let running = self.engine.generate(long.clone());
        self.until_running().await?;
        self.soon("a release", self.engine.release()).await?.map_err(failed)?;
        let held = handles(&newest).saturating_sub(before);
        require(held == 0, || format!("{held} handles on released weights"))?;
        require(self.health().await?.loaded.is_empty(), || "weights are left after a release".to_owned())?;
        let impatient = GenerateRequest { timeout: Some(Duration::from_millis(20)), ..request(11, 0, 2) };
        let answer = self.soon("a request without weights", self.engine.generate(impatient)).await?;
        require(matches!(answer, Err(RolloutError::Timeout { .. })), || {
            format!("without weights: {answer:?}")
        })?;
        // Requests that had started have finished; others wait for the next weights.
        self.load(92, OnUpdate::Finish).await?;
        let running = self.answer(&long, running).await?;
        let version = running.versions.first().map_or(0, |span| span.version.0);
        self.check_whole(&long, &running, version)?;
        require(running.stop != StopReason::Aborted, || "a release ended a completion".to_owned())?;
        self.quiet().await
    }

    /// Tokens carry the id of the policy that was loaded.
    async fn tokens_name_their_policy(&self) -> Verdict {
        let other = PolicyId(1);
        if self.capabilities.policies == 1 {
            self.soon("a release", self.engine.release()).await?.map_err(failed)?;
        }
        let published = self.trainer.publish(other, PolicyVersion(3));
        self.soon("a load", self.engine.load(&published, OnUpdate::Finish)).await?.map_err(failed)?;
        let request = GenerateRequest { policy: other, ..request(12, 0, 6) };
        self.check_whole(&request, &self.complete(&request).await?, 3)
    }

    /// Waits until something runs, unless it is over by then.
    async fn until_running(&self) -> Verdict {
        for _ in 0..100 {
            if self.health().await?.running > 0 {
                break;
            }
        }
        Ok(())
    }

    async fn soon<R>(&self, what: &str, future: impl Future<Output = R>) -> Result<R, Violation> {
        timeout(self.patience, future).await.map_err(|_| Violation::new(format!("{what} never completes")))
    }

    /// A request for a long completion.
    fn long(&self, ticket: u64, sample: u32) -> GenerateRequest {
        request(ticket, sample, self.capabilities.context.min(400) - 3)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: RolloutError) -> Violation {
    Violation::new(error.to_string())
}

fn request(ticket: u64, sample: u32, max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey { sample, ..RandomKey::new(9, 0, Purpose::Rollout, ticket) };
    let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
    let prompt: Arc<[u32]> = Arc::from([1, 5, 9]);
    GenerateRequest { group: Some(ticket), ..GenerateRequest::new(key, prompt, sampling) }
}
