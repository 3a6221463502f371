//! What every engine must do, in one suite that is run over each of them: the promises of [`RolloutEngine`], and what
//! its methods say of themselves, as far as the engine's [`RolloutCapabilities`] go.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{PolicyVersion, Purpose, RandomKey, StopReason};
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::{
    Abort, GenerateRequest, Generation, OnUpdate, RolloutCapabilities, RolloutEngine, RolloutError,
    RolloutSettings, SamplingSettings, generate_all,
};
use rloom_model::{Model, Weights};
use rloom_ops::Ctx;
use tokio::time::timeout;

use crate::support::{config_of, rescore, run, weights};

type Verdict = Result<(), String>;

/// An engine under examination.
pub(crate) struct Suite<'a, E> {
    engine: &'a E,
    capabilities: RolloutCapabilities,
    models: [Arc<Model>; 2],
    tolerance: f32,
    ctx: Ctx,
    /// How long the suite waits for anything.
    pub(crate) patience: Duration,
}

impl<'a, E: RolloutEngine> Suite<'a, E> {
    /// For an engine that has no weights yet. The models must differ and know the tokens 1 to 9. `tolerance` bounds
    /// |reported − trainer's| log-probability; engines that claim to be exact are held to 0.
    pub(crate) fn new(engine: &'a E, models: [Arc<Model>; 2], tolerance: f32) -> Self {
        let capabilities = engine.capabilities();
        let tolerance = if capabilities.exact_logprobs { 0.0 } else { tolerance };
        let (ctx, patience) = (Ctx::new(2).unwrap(), Duration::from_secs(20));
        Self { engine, capabilities, models, tolerance, ctx, patience }
    }

    /// The first thing that the engine did wrong.
    pub(crate) async fn run(&self) -> Verdict {
        self.requests_wait_for_weights().await?;
        self.answers_are_well_formed().await?;
        self.stops_and_prefixes().await?;
        self.refusals().await?;
        self.dropped_futures_cancel().await?;
        self.deadlines_hold().await?;
        self.aborted_requests_go_on_without_a_seam().await?;
        for &mode in self.capabilities.on_update {
            self.updates_in_flight(mode).await.map_err(|e| format!("{mode:?}: {e}"))?;
        }
        self.released_weights_are_free().await
    }

    /// Weights of this version; even ones are the first model's.
    fn weights(&self, version: u64) -> Weights {
        weights(version, &self.models[version as usize % 2])
    }

    async fn load(&self, version: u64, on_update: OnUpdate) -> Verdict {
        let weights = self.weights(version);
        self.soon("a load", self.engine.load(&weights, on_update)).await?.map_err(text)?;
        let health = self.health().await?;
        need(health.version == Some(PolicyVersion(version)), || {
            format!("after version {version} was loaded, {:?} is in use", health.version)
        })
    }

    async fn health(&self) -> Result<rloom_engine::Health, String> {
        self.soon("health", self.engine.health(self.patience)).await?.map_err(text)
    }

    async fn complete(&self, request: &GenerateRequest) -> Result<Generation, String> {
        self.soon("a completion", self.engine.generate(request.clone())).await?.map_err(text)
    }

    /// Waits until nothing runs or waits.
    async fn quiet(&self) -> Verdict {
        let quiet = async {
            loop {
                let health = self.health().await?;
                if health.running + health.waiting == 0 {
                    return Ok::<_, String>(());
                }
                tokio::task::yield_now().await;
            }
        };
        let said = timeout(self.patience, quiet).await;
        said.map_err(|_| "what nobody waits for goes on".to_owned())?
    }

    /// One log-probability per token, each that of the version that its span names; spans without gaps that never go
    /// back. With `only_first`, the log-probabilities of later spans are nobody's.
    fn check(&self, request: &GenerateRequest, made: &Generation, only_first: bool) -> Verdict {
        need(made.tokens.len() == made.logprobs.len(), || "log-probabilities are missing".to_owned())?;
        need(made.logprobs.iter().all(|l| l.is_finite() && *l <= 0.0), || format!("{:?}", made.logprobs))?;
        need(made.temperature == request.sampling.reported_temperature(), || {
            format!("reports temperature {}", made.temperature)
        })?;
        let (mut at, mut last) = (0, None);
        for (place, span) in made.versions.iter().enumerate() {
            let in_order = span.range.start == at && span.range.end > at && last < Some(span.version);
            need(in_order, || format!("spans {:?}", made.versions))?;
            (at, last) = (span.range.end, Some(span.version));
            if only_first && place > 0 {
                continue;
            }
            let model = &self.models[span.version.0 as usize % 2];
            let trained = rescore(model, &self.ctx, &[(request.clone(), made.clone())]).remove(0);
            let pairs = made.logprobs[span.range.clone()].iter().zip(&trained[span.range.clone()]);
            let worst = pairs.map(|(sampled, trained)| (sampled - trained).abs()).fold(0.0, f32::max);
            need(worst <= self.tolerance, || {
                format!("log-probabilities of version {} are off by {worst}", span.version.0)
            })?;
        }
        need(at == made.tokens.len(), || format!("spans {:?} for {at} tokens", made.versions))
    }

    fn check_whole(&self, request: &GenerateRequest, made: &Generation, version: u64) -> Verdict {
        self.check(request, made, false)?;
        let all = made.versions.iter().all(|span| span.version.0 == version);
        need(all, || format!("{:?} instead of version {version} alone", made.versions))
    }

    /// Promise 3. Without weights nothing comes; with the first ones everything does that is still wanted.
    async fn requests_wait_for_weights(&self) -> Verdict {
        need(self.health().await?.version.is_none(), || "has weights before the first load".to_owned())?;
        let early = self.engine.generate(request(0, 0, 6));
        drop(self.engine.generate(request(0, 1, 6)));
        let soon_over = GenerateRequest { timeout: Some(Duration::from_millis(20)), ..request(0, 2, 6) };
        let late = self.soon("a request with a deadline", self.engine.generate(soon_over)).await?;
        need(matches!(late, Err(RolloutError::Timeout { .. })), || format!("past its deadline: {late:?}"))?;
        let waiting = self.health().await?.waiting;
        need(waiting == 1, || format!("what nobody waits for goes on: {waiting} instead of 1 wait"))?;
        self.load(2, OnUpdate::Finish).await?;
        let early = self.soon("a request from before the load", early).await?.map_err(text)?;
        self.check_whole(&request(0, 0, 6), &early, 2)
    }

    /// Promises 1 and 4.
    async fn answers_are_well_formed(&self) -> Verdict {
        let requests: Vec<_> = (0..8).map(|sample| request(1, sample, 12)).collect();
        let made =
            self.soon("completions", generate_all(self.engine, requests.clone())).await?.map_err(text)?;
        for (request, made) in requests.iter().zip(&made) {
            self.check_whole(request, made, 2)?;
            need(made.stop == StopReason::Length && made.tokens.len() == 12, || format!("{made:?}"))?;
        }
        need(made.windows(2).any(|pair| pair[0].tokens != pair[1].tokens), || {
            "samples are equal".to_owned()
        })?;
        if self.capabilities.batch_invariant {
            // Alone, and in another order.
            need(self.complete(&requests[3]).await? == made[3], || "another result when alone".to_owned())?;
            let ranked = requests.iter().zip((0..8u64).rev());
            let ranked = ranked.map(|(r, priority)| GenerateRequest { priority, group: None, ..r.clone() });
            let again = self.soon("completions", generate_all(self.engine, ranked)).await?.map_err(text)?;
            need(again == made, || "priorities or groups changed a result".to_owned())?;
        }
        let mut warm = request(2, 0, 12);
        warm.sampling = SamplingSettings { temperature: 0.7, top_k: 3, top_p: 0.8, ..warm.sampling };
        let mut greedy = request(2, 1, 12);
        greedy.sampling.temperature = 0.0;
        for request in [warm, greedy] {
            self.check_whole(&request, &self.complete(&request).await?, 2)?;
        }
        Ok(())
    }

    async fn stops_and_prefixes(&self) -> Verdict {
        let whole_request = request(1, 0, 12);
        let whole = self.complete(&whole_request).await?;
        let stop = whole.tokens[5];
        let stopping = GenerateRequest { stop_tokens: Arc::from([stop]), ..whole_request.clone() };
        let stopped = self.complete(&stopping).await?;
        if self.capabilities.batch_invariant {
            let end = whole.tokens.iter().position(|&t| t == stop).map_or(0, |at| at + 1);
            need(stopped.tokens == whole.tokens[..end], || "a stop token changed other tokens".to_owned())?;
        }
        need(
            stopped.stop == StopReason::Length
                || (stopped.stop == StopReason::StopToken && stopped.tokens.last() == Some(&stop)),
            || format!("a stop token gave {stopped:?}"),
        )?;
        let mut held = stopping.clone();
        held.sampling.min_new_tokens = 12;
        let held = self.complete(&held).await?;
        need(held.tokens.len() == 12 && !held.tokens[..11].contains(&stop), || {
            format!("a stop token before min_new_tokens: {:?}", held.tokens)
        })?;
        let resumed = GenerateRequest { prefix: whole.tokens[..4].to_vec(), ..whole_request };
        let rest = self.complete(&resumed).await?;
        self.check_whole(&resumed, &rest, 2)?;
        need(rest.tokens.len() == 8, || format!("{} tokens after a prefix of 4 of 12", rest.tokens.len()))?;
        let complete = GenerateRequest { prefix: whole.tokens.clone(), ..resumed };
        let none = self.complete(&complete).await?;
        need(none.tokens.is_empty() && none.stop == StopReason::Length, || format!("a full prefix: {none:?}"))
    }

    async fn refusals(&self) -> Verdict {
        let empty = GenerateRequest { prompt: Arc::from([]), ..request(3, 0, 4) };
        let overfull = GenerateRequest { prefix: vec![1; 5], ..request(3, 1, 4) };
        for bad in [empty, overfull] {
            let answer = self.soon("a refusal", self.engine.generate(bad)).await?;
            let refused = matches!(answer, Err(RolloutError::InvalidRequest { .. }));
            need(refused, || format!("a bad request: {answer:?}"))?;
        }
        let long = request(3, 2, self.capabilities.context);
        let answer = self.soon("a refusal", self.engine.generate(long)).await?;
        need(matches!(answer, Err(RolloutError::TooLong { .. })), || format!("a long request: {answer:?}"))
    }

    /// Promise 2.
    async fn dropped_futures_cancel(&self) -> Verdict {
        // So many that they cannot all be over by chance.
        let futures: Vec<_> = (0..200).map(|sample| self.engine.generate(self.long(4, sample))).collect();
        drop(futures);
        let begun = self.health().await?;
        let next = request(4, 900, 6);
        self.check_whole(&next, &self.complete(&next).await?, 2)?;
        self.quiet().await?;
        need(begun.version == Some(PolicyVersion(2)), || format!("{begun:?}"))
    }

    /// Promise 1, when time is short: an answer or the right error, and nothing goes on behind it.
    async fn deadlines_hold(&self) -> Verdict {
        for micros in [0, 300, 3000] {
            let hurried = GenerateRequest { timeout: Some(Duration::from_micros(micros)), ..self.long(5, 0) };
            match self.soon("a request with a deadline", self.engine.generate(hurried.clone())).await? {
                Ok(made) => self.check_whole(&hurried, &made, 2)?,
                Err(RolloutError::Timeout { .. }) => {}
                Err(other) => return Err(format!("past its deadline: {other}")),
            }
        }
        self.quiet().await
    }

    async fn aborted_requests_go_on_without_a_seam(&self) -> Verdict {
        let mut cut_off = 0;
        for round in 0..30 {
            if round >= 6 && cut_off > 0 {
                break;
            }
            let requests: Vec<_> = (0..3).map(|sample| self.long(100 + round, sample)).collect();
            let other = request(7, round as u32, 12);
            let futures: Vec<_> = requests.iter().map(|r| self.engine.generate(r.clone())).collect();
            let beside = self.engine.generate(other.clone());
            let first = requests[0].key;
            let which = [Abort::Group(100 + round), Abort::Request(first), Abort::All][round as usize % 3];
            self.soon("an abort", self.engine.abort(which)).await?.map_err(text)?;
            for (request, future) in requests.iter().zip(futures) {
                let concerned = !matches!(which, Abort::Request(key) if key != request.key);
                // The abort is over, so the answer is there already.
                let wait = if concerned { Duration::ZERO } else { self.patience };
                let part = timeout(wait, future).await.map_err(|_| format!("{which:?} aborted nothing"))?;
                let part = part.map_err(text)?;
                self.check_whole(request, &part, 2)?;
                if part.stop != StopReason::Aborted {
                    continue;
                }
                need(concerned, || format!("{which:?} aborted {:?}", request.key))?;
                cut_off += 1;
                let again = GenerateRequest { prefix: part.tokens.clone(), ..request.clone() };
                let joined = part.then(self.complete(&again).await?);
                self.check_whole(request, &joined, 2)?;
                if self.capabilities.batch_invariant {
                    need(joined == self.complete(request).await?, || "an abort left a seam".to_owned())?;
                }
            }
            let beside = self.soon("a completion", beside).await?.map_err(text)?;
            if which != Abort::All {
                need(beside.stop != StopReason::Aborted, || format!("{which:?} aborted another group"))?;
            }
        }
        need(cut_off > 0, || "ninety aborts came too late".to_owned())
    }

    /// Weights that come under completions, several times.
    async fn updates_in_flight(&self, mode: OnUpdate) -> Verdict {
        let mut interrupted = mode == OnUpdate::Finish;
        for round in 0..30u64 {
            if round >= 6 && interrupted {
                break;
            }
            let (old, new) = (10 + 2 * round, 11 + 2 * round);
            self.load(old, OnUpdate::Finish).await?;
            let requests: Vec<_> = (0..4).map(|sample| self.long(200 + round, sample)).collect();
            let futures: Vec<_> = requests.iter().map(|r| self.engine.generate(r.clone())).collect();
            if round % 2 == 0 {
                self.begun().await?;
            }
            let newer = self.weights(new);
            let loading = self.engine.load(&newer, mode);
            let late = self.engine.generate(request(8, round as u32, 12));
            self.soon("a load", loading).await?.map_err(text)?;
            let version = self.health().await?.version;
            need(version == Some(PolicyVersion(new)), || format!("{version:?} is in use after the load"))?;
            for (request, future) in requests.iter().zip(futures) {
                let made = self.soon("a completion under way", future).await?.map_err(text)?;
                self.check(request, &made, mode == OnUpdate::Keep)?;
                let is_cut_off = made.stop == StopReason::Aborted;
                interrupted |= is_cut_off || made.versions.len() > 1;
                need(!is_cut_off || mode == OnUpdate::Abort, || "it was aborted".to_owned())?;
                let has_one = made.versions.len() <= 1;
                need(has_one || matches!(mode, OnUpdate::Keep | OnUpdate::Recompute), || {
                    format!("{:?}", made.versions)
                })?;
            }
            let late = self.soon("a completion from after the load", late).await?.map_err(text)?;
            self.check_whole(&request(8, round as u32, 12), &late, new)?;
        }
        need(interrupted, || "thirty times the completions were over before the weights came".to_owned())?;
        // Two loads at once: both are answered, the last one stays.
        let (one, two) = (self.weights(80), self.weights(81));
        let running = self.engine.generate(self.long(9, 0));
        let (first, second) = (self.engine.load(&one, OnUpdate::Finish), self.engine.load(&two, mode));
        self.soon("a load", second).await?.map_err(text)?;
        self.soon("a load that was overtaken", first).await?.map_err(text)?;
        let running = self.soon("a completion under way", running).await?.map_err(text)?;
        self.check(&self.long(9, 0), &running, mode == OnUpdate::Keep)?;
        need(self.health().await?.version == Some(PolicyVersion(81)), || {
            "the last load did not stay".to_owned()
        })
    }

    async fn released_weights_are_free(&self) -> Verdict {
        let newest = self.weights(90);
        let holders = Arc::strong_count(&newest.model);
        self.soon("a load", self.engine.load(&newest, OnUpdate::Finish)).await?.map_err(text)?;
        let running = self.engine.generate(self.long(10, 0));
        self.begun().await?;
        self.soon("a release", self.engine.release()).await?.map_err(text)?;
        let held = Arc::strong_count(&newest.model) - holders;
        need(held == 0, || format!("{held} hold released weights"))?;
        need(self.health().await?.version.is_none(), || "a release left weights".to_owned())?;
        let impatient = GenerateRequest { timeout: Some(Duration::from_millis(20)), ..request(11, 0, 2) };
        let answer = self.soon("a request without weights", self.engine.generate(impatient)).await?;
        need(matches!(answer, Err(RolloutError::Timeout { .. })), || format!("without weights: {answer:?}"))?;
        // What had been started has ended; what had not waits for the next weights.
        self.load(92, OnUpdate::Finish).await?;
        let running = self.soon("a completion under way", running).await?.map_err(text)?;
        let version = running.versions.first().map_or(0, |span| span.version.0);
        self.check_whole(&self.long(10, 0), &running, version)?;
        need(running.stop != StopReason::Aborted, || "a release ended a completion".to_owned())?;
        self.quiet().await
    }

    /// Waits until something runs, if it is not over by then.
    async fn begun(&self) -> Verdict {
        for _ in 0..100 {
            if self.health().await?.running > 0 {
                break;
            }
        }
        Ok(())
    }

    async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T, String> {
        timeout(self.patience, future).await.map_err(|_| format!("{what} never comes"))
    }

    /// As long as the context allows.
    fn long(&self, ticket: u64, sample: u32) -> GenerateRequest {
        request(ticket, sample, self.capabilities.context.min(400) - 3)
    }
}

fn need(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: RolloutError) -> String {
    error.to_string()
}

pub(crate) fn request(ticket: u64, sample: u32, max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey { sample, ..RandomKey::new(9, 0, Purpose::Rollout, ticket) };
    let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
    let prompt: Arc<[u32]> = Arc::from([1, 5, 9]);
    GenerateRequest { group: Some(ticket), ..GenerateRequest::new(key, prompt, sampling) }
}

#[test]
fn the_embedded_engine_conforms() {
    for settings in [
        RolloutSettings::default(),
        RolloutSettings { lanes: 3, max_batch: 1, prefill_chunk: 2, ..RolloutSettings::default() },
        RolloutSettings { lanes: 1, threads: 2, ..RolloutSettings::default() },
    ] {
        let config = config_of(1024);
        let models = [1, 2].map(|seed| Arc::new(Model::init(&config, seed)));
        let engine = EmbeddedRolloutEngine::new(&config, &Ctx::new(2).unwrap(), &settings, None).unwrap();
        assert_eq!(run(Suite::new(&engine, models, 0.0).run()), Ok(()), "{settings:?}");
    }
}
