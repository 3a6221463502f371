//! Episodes of the agents of a stage or of an evaluation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rloom_collect::{AgentHost, HostedEpisode, HostedSampler};
use rloom_core::{RandomKey, SampleKey, Task, Trajectory};
use rloom_engine::{GenerateRequest, RolloutError};
use rloom_env::{Agent, AgentEnvironment, BoxFuture, EnvError, Environment, Start};
use rloom_serve::{OpenSession, Sampler, SessionEnd, SessionLimit, SessionSpec, SessionStatus};
use rloom_text::Tokenizer;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::counters::Counters;
use crate::error::{AgentError, Output as Quoted};
use crate::log::{Log, Logs};
use crate::process::{AgentProcess, Launch};
use crate::reward::add_rewards;
use crate::server::AgentServer;
use crate::task::task_json;
use crate::watch::{Phase, Watch, Watches};

/// Time for a program to end after its session has finished.
const EXIT_GRACE: Duration = Duration::from_secs(10);
/// Largest value of an environment variable that Linux passes to a program, with room for the name.
const MAX_VARIABLE: usize = 120 << 10;

/// Runs the agents of a stage or of an evaluation.
#[derive(Debug)]
pub struct AgentRunner {
    server: Arc<AgentServer>,
    settings: AgentEnvironment,
    logs: Option<Logs>,
    needs_reward: bool,
    places: Semaphore,
    watches: Watches,
    counters: Counters,
}

/// Completions of a session, whose calls are watched.
struct SessionSampler {
    sampler: HostedSampler,
    watch: Watch,
}

impl Sampler for SessionSampler {
    fn generate(self: Arc<Self>, request: GenerateRequest) -> rloom_serve::Completion {
        Box::pin(async move {
            let _call = self.watch.call();
            self.sampler.clone().generate(request).await
        })
    }

    fn check(self: Arc<Self>, _: Duration) -> rloom_serve::Check {
        Box::pin(std::future::ready(Ok::<(), RolloutError>(())))
    }
}

impl AgentRunner {
    /// A runner of agents that call `server`. Logs are kept in the folder `name` of `logs`. An agent that
    /// reports no reward has failed if `needs_reward`.
    pub fn new(
        server: Arc<AgentServer>,
        settings: AgentEnvironment,
        name: &str,
        logs: Option<&Path>,
        needs_reward: bool,
    ) -> Self {
        let logs = logs.filter(|_| !settings.lease);
        Self {
            server,
            logs: logs.map(|folder| Logs::new(folder.join(name), settings.kept_logs())),
            needs_reward,
            places: Semaphore::new(settings.concurrency as usize),
            settings,
            watches: Watches::default(),
            counters: Counters::default(),
        }
    }

    /// Attempts an episode until an agent completes it.
    async fn attempts(&self, episode: &HostedEpisode<'_>) -> Result<Vec<Trajectory>, AgentError> {
        let watched = self.watches.begin(episode.key);
        let _place = self.places.acquire().await.map_err(|_| AgentError::ServerEnded)?;
        let mut attempt = 1;
        loop {
            let result = if self.settings.lease {
                self.leased(episode, &watched.watch).await
            } else {
                self.started(episode, &watched.watch, attempt).await
            };
            let error = match result {
                Ok(segments) => return Ok(segments),
                Err(error) => error,
            };
            self.counters.failed();
            if attempt == self.settings.attempts || !error.may_pass() {
                return Err(error);
            }
            attempt += 1;
        }
    }

    /// Opens the session of an attempt.
    fn open(&self, episode: &HostedEpisode<'_>, watch: &Watch) -> Result<OpenSession, AgentError> {
        let sampler = SessionSampler { sampler: episode.sampler.clone(), watch: watch.clone() };
        Ok(self.server.sessions().open(SessionSpec {
            sampler: Arc::new(sampler),
            sampling: episode.sampling.clone(),
            random: episode.random,
            key: episode.key,
            policy: episode.policy,
            group: episode.group,
            priority: episode.priority,
        })?)
    }

    /// Starts the program and waits for its end.
    async fn started(
        &self,
        episode: &HostedEpisode<'_>,
        watch: &Watch,
        attempt: u32,
    ) -> Result<Vec<Trajectory>, AgentError> {
        let mut session = self.open(episode, watch)?;
        let environment = self.variables(episode.task, &session)?;
        let log =
            self.logs.as_ref().map_or_else(Log::default, |logs| logs.begin(&log_name(episode.key, attempt)));
        let log = log.without(session.token());
        let output = log.output();
        let mut process = self.launch(environment, log)?;
        watch.enter(Phase::Running);
        let since = Instant::now();
        let end = tokio::select! {
            biased;
            // The agent has finished, or a limit is reached.
            end = session.ended() => {
                if end.status == SessionStatus::Finished {
                    let _ = timeout(EXIT_GRACE, process.ended()).await;
                }
                Ok(end)
            }
            exit = process.ended() => match exit {
                Ok(()) => {
                    session.close(SessionStatus::Finished);
                    Ok(session.ended().await)
                }
                Err(error) => Err(error),
            },
        };
        drop(process);
        let result = end.and_then(|end| self.completed(end, since));
        let log = self.logs.as_ref().and_then(|logs| logs.end(&output, result.is_err()));
        match result {
            Ok(segments) => Ok(segments),
            Err(error) => Err(error.with_output(Quoted { lines: output.last_lines().await, log })),
        }
    }

    /// Starts the program, in its sandbox if it has one.
    fn launch(
        &self,
        environment: BTreeMap<&'static str, String>,
        log: Log,
    ) -> Result<AgentProcess, AgentError> {
        let AgentEnvironment { command, cwd, .. } = &self.settings;
        let started = if let Some(jail) = self.server.jail() {
            let time = self.settings.timeout() + EXIT_GRACE;
            AgentProcess::start_in(&jail.sandbox, jail.execution(command, &environment, time)?, log)
        } else {
            let launch = Launch { command, cwd: cwd.as_deref(), environment };
            AgentProcess::start(&launch, self.server.guard(), log)
        };
        started.map_err(|error| AgentError::Start {
            program: command.first().cloned().unwrap_or_default(),
            reason: error.to_string(),
        })
    }

    /// Offers the episode to agents that lease, and waits for its end.
    async fn leased(
        &self,
        episode: &HostedEpisode<'_>,
        watch: &Watch,
    ) -> Result<Vec<Trajectory>, AgentError> {
        loop {
            watch.enter(Phase::Offered);
            let grant = self.server.offers().offer().await.ok_or(AgentError::ServerEnded)?;
            let mut session = self.open(episode, watch)?;
            let since = Instant::now();
            if grant.send(self.lease(episode.task, &session)).is_err() {
                // The agent has gone before it received the lease.
                continue;
            }
            watch.enter(Phase::Running);
            let end = session.ended().await;
            if matches!(end.status, SessionStatus::Expired { limit: SessionLimit::Idle }) {
                self.counters.expired();
            }
            return self.completed(end, since);
        }
    }

    /// The segments of a session that has finished, with its rewards.
    fn completed(&self, end: SessionEnd, since: Instant) -> Result<Vec<Trajectory>, AgentError> {
        let SessionEnd { mut segments, rewards, status, calls } = end;
        let output = Quoted::default();
        match status {
            SessionStatus::Finished => {}
            SessionStatus::Failed { message } => return Err(AgentError::Reported { message, output }),
            SessionStatus::Expired { limit } => return Err(AgentError::Limit { limit, output }),
        }
        if segments.iter().all(|segment| segment.policy_tokens() == 0) {
            return Err(AgentError::NoCall { output });
        }
        if self.needs_reward && rewards.is_empty() {
            return Err(AgentError::NoReward { output });
        }
        add_rewards(&mut segments, &rewards);
        let named = rewards.iter().map(|reward| (reward.name.as_str(), reward.value));
        self.counters.completed(calls, segments.len(), since.elapsed(), named);
        Ok(segments)
    }

    /// The environment variables of a program.
    fn variables(
        &self,
        task: &Task,
        session: &OpenSession,
    ) -> Result<BTreeMap<&'static str, String>, AgentError> {
        let task = task_json(task, self.settings.hide_answer).to_string();
        if task.len() > MAX_VARIABLE {
            return Err(AgentError::TaskTooLarge { bytes: task.len(), limit: MAX_VARIABLE });
        }
        let url = self.server.url(session);
        let mut variables = BTreeMap::from([
            ("OPENAI_BASE_URL", format!("{url}/v1")),
            ("OPENAI_API_KEY", session.token().to_owned()),
            ("ANTHROPIC_BASE_URL", url.clone()),
            ("ANTHROPIC_API_KEY", session.token().to_owned()),
            ("RLOOM_REWARD_URL", format!("{url}/reward")),
            ("RLOOM_FINISH_URL", format!("{url}/finish")),
            ("RLOOM_TASK", task),
        ]);
        // A proxy cannot reach this machine's own addresses.
        for name in ["NO_PROXY", "no_proxy"] {
            let others = std::env::var(name).map(|others| format!(",{others}")).unwrap_or_default();
            variables.insert(name, format!("127.0.0.1,localhost{others}"));
        }
        Ok(variables)
    }

    /// What an agent that leases receives.
    fn lease(&self, task: &Task, session: &OpenSession) -> Value {
        let url = self.server.url(session);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({
            "base_url": format!("{url}/v1"),
            "anthropic_base_url": url,
            "api_key": session.token(),
            "reward_url": format!("{url}/reward"),
            "finish_url": format!("{url}/finish"),
            "deadline": (now + self.settings.timeout()).as_secs(),
            "lease_seconds": self.settings.lease_time().as_secs_f64(),
            "task": task_json(task, self.settings.hide_answer),
        })
    }
}

fn log_name(key: SampleKey, attempt: u32) -> String {
    format!("{}-{}-{attempt}", key.ticket.0, key.sample)
}

impl Environment for AgentRunner {
    fn name(&self) -> &'static str {
        AgentEnvironment::NAME
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Agent.start(task, tokenizer, random)
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        self.counters.take()
    }
}

impl AgentHost for AgentRunner {
    fn run<'a>(&'a self, episode: HostedEpisode<'a>) -> BoxFuture<'a, Result<Vec<Trajectory>, EnvError>> {
        Box::pin(async move {
            let failed = |error| EnvError::Failed {
                name: AgentEnvironment::NAME.to_owned(),
                task: episode.task.index,
                source: Box::new(error),
            };
            self.attempts(&episode).await.map_err(failed)
        })
    }

    fn activity_of(&self, key: SampleKey) -> Option<String> {
        self.watches.describe(key)
    }
}
