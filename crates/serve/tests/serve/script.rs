//! A server in a thread, whose engine answers from a script.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rloom_core::{
    OnUpdate, PolicyId, PolicyVersion, Purpose, RandomKey, SampleKey, StopReason, Ticket, VersionSpan,
};
use rloom_engine::{
    Abort, GenerateRequest, Generation, Health, PublishedPolicy, RolloutCapabilities, RolloutEngine,
    RolloutError, RolloutStatistics, SampledToken, SamplingSettings, VersionGranularity, WorkerStatus,
};
use rloom_serve::{
    ApiKey, Exchange, OpenSession, ServeSettings, ServedModel, Server, SessionSettings, SessionSpec,
    Sessions, Stopper, listen,
};
use rloom_text::calls::CallFormat;
use rloom_text::{IncrementalDecoder, StopStrings, Tokenizer};
use tokio::sync::Semaphore;

/// Context of the model in tokens.
pub(crate) const CONTEXT: usize = 6000;

/// Tokens of a completion that is held: enough that clients have pieces of it.
const HELD_AT: usize = 59;

/// A tokenizer of bytes with the template of a family; a turn ends with `<|stop|>`.
pub(crate) fn tokenizer(template: &str) -> Tokenizer {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(golden.join("byte_level").join(name), folder.path().join(name)).unwrap();
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/templates").join(template);
    let path = if own.exists() { own } else { golden.join("tool_templates").join(template) };
    let template = std::fs::read_to_string(path).unwrap();
    let template = template.replace("<|im_end|>", "<|stop|>");
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Tokenizer::load(folder.path()).unwrap()
}

/// What the engine writes after a prompt.
pub(crate) type Script = dyn Fn(&str) -> String + Send + Sync;

/// The engine.
pub(crate) struct Scripted {
    tokenizer: Tokenizer,
    script: Box<Script>,
    /// Permits for tokens; a closed gate stops nothing.
    pub(crate) gate: Semaphore,
    /// Text of prompts whose completions wait after [`HELD_AT`] tokens, until [`Self::held`] is closed.
    holds: Option<&'static str>,
    pub(crate) held: Semaphore,
    /// Requests that are computed.
    pub(crate) live: AtomicUsize,
    /// Requests that were dropped before their end.
    pub(crate) cancelled: AtomicUsize,
    /// Requests to lose after three tokens.
    pub(crate) to_lose: AtomicUsize,
    /// Send no token before the end.
    pub(crate) is_silent: bool,
    /// Prompts with their completions.
    pub(crate) record: Mutex<Vec<(Vec<u32>, Vec<u32>)>>,
    /// Random keys of the requests, in the order of their submission.
    pub(crate) keys: Mutex<Vec<RandomKey>>,
    /// Groups of the requests, in the same order.
    pub(crate) groups: Mutex<Vec<Option<u64>>>,
}

struct Live<'e>(&'e Scripted, bool);

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
        if !self.1 {
            self.0.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Log-probability that the engine reports for a token.
pub(crate) fn logprob(token: u32) -> f32 {
    -(token as f32) / 64.0
}

impl Scripted {
    /// The completion of a request, with its end.
    fn completion(&self, request: &GenerateRequest) -> (Vec<u32>, StopReason) {
        let prompt = self.tokenizer.decode(&request.prompt, false).unwrap();
        let mut tokens = self.tokenizer.encode(&(self.script)(&prompt), false).unwrap();
        tokens.extend(self.tokenizer.token_to_id("<|stop|>"));
        let mut decoder = IncrementalDecoder::new(&self.tokenizer, false);
        let mut stops = StopStrings::new(request.sampling.stop.clone()).unwrap();
        for (at, &token) in tokens.iter().enumerate() {
            if request.stop_tokens.contains(&token) {
                return (tokens[..=at].to_vec(), StopReason::StopToken);
            }
            if stops.push(&decoder.push(token).unwrap()).is_some() {
                return (tokens[..=at].to_vec(), StopReason::StopString);
            }
            if at + 1 == request.sampling.max_new_tokens {
                return (tokens[..=at].to_vec(), StopReason::Length);
            }
        }
        unreachable!("the last token ends a completion");
    }

    /// Tokens that the prompt has in common with that of a completed request, but for its last one.
    fn reused(&self, prompt: &[u32]) -> usize {
        let in_common = |(earlier, _): &(Vec<u32>, Vec<u32>)| {
            earlier.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1)
        };
        self.record.lock().unwrap().iter().map(in_common).max().unwrap_or(0)
    }

    async fn run(&self, request: GenerateRequest) -> Result<Generation, RolloutError> {
        self.live.fetch_add(1, Ordering::SeqCst);
        self.keys.lock().unwrap().push(request.key);
        self.groups.lock().unwrap().push(request.group);
        let mut live = Live(self, false);
        if let Some(reused) = &request.reused {
            reused.set(self.reused(&request.prompt));
        }
        let (whole, stop) = self.completion(&request);
        assert!(whole.starts_with(&request.prefix), "a prefix is part of the completion");
        let tokens = whole[request.prefix.len()..].to_vec();
        let is_held = match self.holds {
            Some(text) => self.tokenizer.decode(&request.prompt, false).unwrap().contains(text),
            None => false,
        };
        for (at, &token) in tokens.iter().enumerate() {
            if let Ok(permit) = self.gate.acquire().await {
                permit.forget();
            }
            if is_held && at == HELD_AT {
                assert!(self.held.acquire().await.is_err(), "it is closed to end");
            }
            if at == 3 && self.to_lose.load(Ordering::SeqCst) > 0 {
                self.to_lose.fetch_sub(1, Ordering::SeqCst);
                live.1 = true;
                return Err(RolloutError::ReplicaLost { replica: 0, message: "gone".to_owned() });
            }
            if let Some(sink) = request.sink.as_ref().filter(|_| !self.is_silent) {
                sink.send(SampledToken { token, logprob: logprob(token) });
            }
            tokio::task::yield_now().await;
        }
        live.1 = true;
        self.record.lock().unwrap().push((request.prompt.to_vec(), whole));
        let span = VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(0), range: 0..tokens.len() };
        Ok(Generation {
            logprobs: tokens.iter().map(|&token| logprob(token)).collect(),
            temperature: request.sampling.reported_temperature(),
            versions: if tokens.is_empty() { Vec::new() } else { vec![span] },
            tokens,
            stop,
            replica: None,
        })
    }
}

impl RolloutEngine for Scripted {
    async fn generate(&self, request: GenerateRequest) -> Result<Generation, RolloutError> {
        self.run(request).await
    }

    async fn load(&self, _: &PublishedPolicy, _: OnUpdate) -> Result<(), RolloutError> {
        Ok(())
    }

    async fn release(&self) -> Result<(), RolloutError> {
        Ok(())
    }

    async fn abort(&self, _: Abort) -> Result<(), RolloutError> {
        Ok(())
    }

    async fn health(&self, _: Duration) -> Result<Health, RolloutError> {
        Ok(Health::default())
    }

    fn capabilities(&self) -> RolloutCapabilities {
        RolloutCapabilities {
            numeric_path: None,
            batch_invariant: true,
            on_update: Vec::new(),
            mixes_versions: Vec::new(),
            versions: VersionGranularity::PerToken,
            forms: Vec::new(),
            stop_strings: true,
            context: CONTEXT,
            max_running: 64,
            policies: 1,
            attachments: false,
            parks: false,
            speculates: false,
            quantizes: false,
        }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        Vec::new()
    }

    fn statistics(&self) -> RolloutStatistics {
        RolloutStatistics::default()
    }
}

/// How a server is started.
pub(crate) struct Setup {
    pub(crate) script: Box<Script>,
    pub(crate) template: &'static str,
    pub(crate) settings: ServeSettings,
    pub(crate) key: Option<ApiKey>,
    /// Tokens that may be sampled; `None` for all.
    pub(crate) tokens: Option<usize>,
    pub(crate) to_lose: usize,
    pub(crate) is_silent: bool,
    /// Text of prompts whose completions are held.
    pub(crate) holds: Option<&'static str>,
    pub(crate) sessions: SessionSettings,
}

impl Setup {
    pub(crate) fn new(script: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self {
            script: Box::new(script),
            template: "chatml.jinja",
            settings: ServeSettings::default(),
            key: None,
            tokens: None,
            to_lose: 0,
            is_silent: false,
            holds: None,
            sessions: SessionSettings::default(),
        }
    }

    /// A server whose engine always writes the same text.
    pub(crate) fn saying(text: &str) -> Self {
        let text = text.to_owned();
        Self::new(move |_| text.clone())
    }

    pub(crate) fn start(self) -> TestServer {
        let tokenizer = tokenizer(self.template);
        let engine = Arc::new(Scripted {
            tokenizer: tokenizer.clone(),
            script: self.script,
            gate: Semaphore::new(self.tokens.unwrap_or(0)),
            holds: self.holds,
            held: Semaphore::new(0),
            live: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            to_lose: AtomicUsize::new(self.to_lose),
            is_silent: self.is_silent,
            record: Mutex::default(),
            keys: Mutex::default(),
            groups: Mutex::default(),
        });
        if self.tokens.is_none() {
            engine.gate.close();
        }
        let model = ServedModel {
            name: "scripted".to_owned(),
            format: CallFormat::detect(&tokenizer),
            stop_tokens: tokenizer.eos_ids().into(),
            tokenizer: tokenizer.clone(),
            sampling: SamplingSettings { max_new_tokens: CONTEXT, ..SamplingSettings::default() },
            context: CONTEXT,
            seed: 0,
        };
        let sessions = Sessions::new(Arc::new(model.clone()), self.sessions);
        let served = sessions.clone();
        let (own, (ready, started)) = (Arc::clone(&engine), mpsc::channel());
        let exchanges = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&exchanges);
        let (key, settings) = (self.key, self.settings);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = listen("127.0.0.1", 0).await.unwrap();
                let record = move |exchange: &Exchange| log.lock().unwrap().push(exchange.clone());
                let server = Server::new(listener, model, own, key, settings, record).with_sessions(served);
                ready.send((server.address().unwrap(), server.stopper())).unwrap();
                server.run().await
            })
        });
        let (address, stopper) = started.recv().unwrap();
        TestServer { address, engine, tokenizer, exchanges, sessions, stopper, thread: Some(thread) }
    }
}

/// A running server; it is stopped when it is dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Scripted>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) exchanges: Arc<Mutex<Vec<Exchange>>>,
    pub(crate) sessions: Sessions,
    pub(crate) stopper: Stopper,
    thread: Option<JoinHandle<usize>>,
}

impl TestServer {
    /// Waits for a condition.
    pub(crate) fn until(what: &str, is_met: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if is_met() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{what} did not happen");
    }

    /// Opens a session at temperature 1.
    pub(crate) fn session(&self) -> OpenSession {
        self.session_with(SamplingSettings { max_new_tokens: CONTEXT, ..SamplingSettings::default() })
    }

    pub(crate) fn session_with(&self, sampling: SamplingSettings) -> OpenSession {
        let key = SampleKey { ticket: Ticket(7), sample: 3, segment: 0 };
        let spec = SessionSpec {
            sampler: self.engine.clone(),
            sampling,
            random: RandomKey::for_sample(1, 0, Purpose::Rollout, key),
            key,
            policy: PolicyId::MAIN,
            group: Some(7),
            priority: 0,
        };
        self.sessions.open(spec).unwrap()
    }

    /// Waits until the engine computes nothing.
    pub(crate) fn idle(&self) {
        Self::until("the end of all requests", || self.engine.live.load(Ordering::SeqCst) == 0);
    }

    /// Lets requests in flight finish; returns the number of those that were cancelled.
    pub(crate) fn drain(mut self) -> usize {
        self.stopper.drain();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
