//! Runs that are killed or stopped in the middle of episodes of several turns end in the same bytes as undisturbed ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rloom_config::Config;
use rloom_core::{RandomKey, StopReason, Task};
use rloom_env::{Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Outcome, Play, Turn, World};
use rloom_hub::Hub;
use rloom_run::assembly::EmbeddedEngines;
use rloom_run::{EpisodeHook, Policy, ResumeOptions, RunInputs, StopFlag, Summary, context, train_on};
use rloom_store::journal::{self, Record};
use rloom_telemetry::{Event, EventLine, Observer};
use rloom_text::Tokenizer;

const DIRECTORY: &str = "RLOOM_TEST_EPISODES";
const KIND: &str = "RLOOM_TEST_EPISODES_OF";

/// Groups of two stages are sampled ahead of a step, so that episodes are unfinished when it ends.
const TEXT: &str = r#"
[run]
name = "episodes"
seed = 3
threads = 2
checkpoint_every = 2

[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 256

# A policy that has learned nothing seldom ends a turn itself.
[sampling]
max_new_tokens = 16
stop = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "L", "D", "R", "U", "F", "S"]

[reward]
components = [{ kind = "random" }, { kind = "environment" }]

[[stage]]
name = "rl"
method = "grpo"
steps = 5
groups_per_batch = 3

[stage.algorithm]
group_size = 3
"#;

/// An environment whose answers depend on all turns.
const PYTHON: &str = r#"
def play(task):
    total = sum(map(ord, task["prompt"]))
    reply = yield task["prompt"]
    for turn in range(4):
        total = total * 7 + sum(map(ord, reply)) + turn
        reply = yield str(total % 10), total % 3 / 2
    return 0.0
"#;

/// The environments: a game of this program, whose turns a resumed run plays again, one in a process of its own, a game of two
/// agents, and agents that are asked at the same time.
const GAME: &str = "game";
const SELF_PLAY: &str = "self-play";
const DEBATE: &str = "debate";
const JOINT: &str = "joint";
const PROCESS: &str = "process";
/// Turns after the first ones of their episodes up to the kill.
const KILL: u64 = 60;
/// Groups of a batch.
const BATCH: u64 = 3;

fn config(kind: &str, directory: &Path) -> Config {
    let file = directory.join("env.py");
    std::fs::write(&file, PYTHON).unwrap();
    let parent = format!("run.directory={}", directory.display());
    let python = format!(
        "environment={{kind='python',function='{}:play',workers=2,max_turns=4,rewards_turns=true,alphabet='0123456789'}}",
        file.display()
    );
    let own: &[&str] = match kind {
        GAME => &["data.generator=frozen_lake", "environment={kind='frozen_lake',max_turns=8,slippery=true}"],
        SELF_PLAY => &[
            "data.generator=tic_tac_toe",
            "environment={kind='self_play',game='tic_tac_toe',max_turns=6}",
            "stage.rl.algorithm.advantage=role_baseline",
        ],
        DEBATE | JOINT => &[
            "data.generator=arithmetic",
            "data.operations=['+']",
            "data.max_digits=1",
            "environment={kind='debate',rounds=3,separator='+',agents={a={count=2,revise='{task}{others}'}}}",
            "reward.components=[{kind='random'}]",
            if kind == DEBATE {
                "stage.rl.algorithm.advantage=per_agent"
            } else {
                "stage.rl.algorithm.advantage=joint_gae"
            },
        ],
        _ => &["data.generator=arithmetic", "data.operations=['+']", "data.max_digits=1", &python],
    };
    let schedule = ["schedule.max_staleness=2", "schedule.pin_version=true", "rollout.max_batch=4"];
    let overrides: Vec<&str> =
        [parent.as_str()].into_iter().chain(schedule).chain(own.iter().copied()).collect();
    Config::from_text("episodes.toml", TEXT, &overrides).map_err(|errors| errors.to_string()).unwrap()
}

/// Weights, optimiser state and rollouts at the end of a run.
fn result(config: &Config) -> Vec<Vec<u8>> {
    let folder = config.run_directory();
    let last = folder.join("checkpoints/rl-step-000005");
    let rollouts = (1..=5).map(|step| folder.join(format!("rollouts/rl-step-{step:06}.jsonl.zst")));
    let files = ["model.safetensors", "trainer/optimizer.safetensors"].map(|name| last.join(name));
    files.into_iter().chain(rollouts).map(|file| std::fs::read(file).unwrap()).collect()
}

fn undisturbed(kind: &str) -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let config = config(kind, directory.path());
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    result(&config)
}

fn resume(config: &Config) {
    let stop = StopFlag::default();
    rloom_run::resume(&config.run_directory(), config, ResumeOptions::default(), &mut (), &stop).unwrap();
}

/// When an environment holds back its answers to later turns.
#[derive(Debug, Clone)]
enum Rule {
    /// Never answers a certain turn, and creates a file in it.
    Hang { turns: Arc<AtomicU64>, inside: PathBuf },
    /// Answers turns of groups after the first batch when the run is to stop, and some time later.
    Wait(StopFlag),
}

impl Rule {
    async fn hold(&self, ticket: u64) {
        match self {
            Self::Hang { turns, inside } => {
                if turns.fetch_add(1, Ordering::SeqCst) + 1 == KILL {
                    std::fs::write(inside, "").unwrap();
                    std::future::pending::<()>().await;
                }
            }
            Self::Wait(stop) if ticket >= BATCH => {
                while !stop.after_this_step() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Self::Wait(_) => {}
        }
    }
}

/// A world that holds back answers.
#[derive(Debug)]
struct Held {
    inner: Arc<dyn World>,
    rule: Rule,
}

impl World for Held {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn agents(&self) -> &[AgentSpec] {
        self.inner.agents()
    }

    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        Box::pin(async move {
            let inner = self.inner.begin(task, tokenizer, random).await?;
            let (rule, ticket) = (self.rule.clone(), random.ticket);
            Ok(Box::new(HeldPlay { inner, rule, ticket, is_first: true }) as Box<dyn Play>)
        })
    }
}

#[derive(Debug)]
struct HeldPlay {
    inner: Box<dyn Play>,
    rule: Rule,
    ticket: u64,
    is_first: bool,
}

impl Play for HeldPlay {
    fn ready(&mut self) -> Vec<Ask> {
        self.inner.ready()
    }

    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        Box::pin(async move {
            if !std::mem::take(&mut self.is_first) {
                self.rule.hold(self.ticket).await;
            }
            self.inner.act(agent, turn).await
        })
    }

    fn end(&mut self) -> Outcome {
        self.inner.end()
    }
}

/// Trains with an environment that holds back answers.
fn train_held(config: &Config, rule: Rule, observer: &mut dyn Observer, stop: &StopFlag) -> Summary {
    let ctx = context(config.run.threads).unwrap();
    let policy = Policy::initial(config, &Hub::from_env()).unwrap();
    let hook = EpisodeHook::new(move |settings| {
        settings.world = Arc::new(Held { inner: Arc::clone(&settings.world), rule: rule.clone() });
    });
    let inputs = RunInputs {
        episode_hook: Some(hook),
        ..RunInputs::new(&policy, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed)
    };
    let engines = EmbeddedEngines::new(&policy, config, ctx);
    train_on(config, &engines, &inputs, observer, stop).unwrap()
}

/// The process that the tests below kill.
#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let config = config(&std::env::var(KIND).unwrap(), &directory);
    let rule = Rule::Hang { turns: Arc::default(), inside: directory.join("inside") };
    train_held(&config, rule, &mut (), &StopFlag::default());
}

/// Kills a run while one of its episodes waits for the answer to a later turn, and resumes it.
fn killed(kind: &str) {
    let directory = tempfile::tempdir().unwrap();
    let config = config(kind, directory.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "episodes::child", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .env(KIND, kind)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !directory.path().join("inside").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before the turn");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(!config.run_directory().join("checkpoints/rl-step-000005").exists());
    resume(&config);
    assert!(result(&config) == undisturbed(kind), "{kind}: other bytes");
}

/// Requests a stop after each step.
struct StopAfterStep(StopFlag);

impl Observer for StopAfterStep {
    fn observe(&mut self, line: &EventLine) {
        if matches!(line.event, Event::Step { .. }) {
            self.0.request();
        }
    }
}

/// Finished turns of the unfinished episodes that a stopped run has saved.
fn saved_turns(config: &Config) -> usize {
    let recovered = journal::read(&config.run_directory().join("journal"), 0).unwrap();
    let records = recovered.snapshot.into_iter().chain(recovered.log);
    let turns = records.flat_map(|record| match record {
        Record::PartialEpisode { episode, .. } => episode.turns,
        _ => Vec::new(),
    });
    turns.filter(|turn| turn.stop != StopReason::Aborted).count()
}

/// Stops a run while episodes of later batches have unanswered turns, and resumes it.
fn stopped(kind: &str) {
    let directory = tempfile::tempdir().unwrap();
    let config = config(kind, directory.path());
    let stop = StopFlag::default();
    let rule = Rule::Wait(stop.clone());
    assert!(train_held(&config, rule, &mut StopAfterStep(stop.clone()), &stop).interrupted);
    assert!(saved_turns(&config) > 0, "{kind}: no episode was in the middle");
    resume(&config);
    assert!(result(&config) == undisturbed(kind), "{kind}: other bytes");
}

#[test]
fn games_that_are_killed_in_the_middle_end_in_the_same_bytes() {
    killed(GAME);
}

#[test]
fn games_that_are_stopped_in_the_middle_end_in_the_same_bytes() {
    stopped(GAME);
}

#[test]
fn episodes_of_several_agents_that_are_killed_in_the_middle_end_in_the_same_bytes() {
    killed(SELF_PLAY);
    killed(DEBATE);
    // A critic of what all agents know.
    killed(JOINT);
}

#[test]
fn episodes_of_several_agents_that_are_stopped_in_the_middle_end_in_the_same_bytes() {
    stopped(SELF_PLAY);
    stopped(DEBATE);
}

#[test]
fn episodes_in_python_that_are_killed_in_the_middle_end_in_the_same_bytes() {
    killed(PROCESS);
}

#[test]
fn episodes_in_python_that_are_stopped_in_the_middle_end_in_the_same_bytes() {
    stopped(PROCESS);
}
