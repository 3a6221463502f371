//! Environments in Python; without Python 3.10 or later these tests say so and pass.

#![expect(clippy::print_stdout, reason = "a test says that it is skipped")]

use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rloom_core::{RandomKey, StopReason, Trajectory};
use rloom_env::{Attempt, EnvError, PythonEnvironment, PythonPlays, conformance};

use crate::support::{chat_task, game, one, random, tokenizer, tokens, turn};

const TIMEOUT: Duration = Duration::from_mins(2);

fn has_python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = Command::new("python3").args(["-c", check]).status().is_ok_and(|status| status.success());
    if !found {
        println!("skipped: there is no python3 of version 3.10 or later");
    }
    found
}

/// The environment `play` of a source text, in one process.
fn environment(folder: &tempfile::TempDir, source: &str) -> PythonPlays {
    let file = folder.path().join("env.py");
    std::fs::write(&file, source).unwrap();
    let settings: PythonEnvironment = serde_json::from_value(serde_json::json!({
        "function": format!("{}:play", file.display()),
        "workers": 1,
        "max_turns": 4,
    }))
    .unwrap();
    PythonPlays::new(&settings, TIMEOUT, None).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn played(environment: &PythonPlays, replies: &[&str]) -> Result<Trajectory, EnvError> {
    let mut attempt = wait(Attempt::start(environment, &game(7), &tokenizer(), 1000, random()))?;
    for reply in replies {
        wait(attempt.turn(turn(&tokens(&format!("{reply}<|eos|>")), StopReason::StopToken)))?;
    }
    attempt.finish().map(one)
}

/// A game of at most three turns, as a class and as a generator function.
const CLASS: &str = "
class play:
    def reset(self, prompt):
        self.turns = 0
        return prompt
    def step(self, reply):
        self.turns += 1
        won = reply == '7'
        return '>', float(won), won or self.turns == 3
";
const GENERATOR: &str = "
def play(task):
    reply = yield task['prompt']
    for _ in range(2):
        if reply == '7':
            return 1.0
        reply = yield '>', 0.0
    return float(reply == '7')
";

#[test]
fn classes_and_generators_keep_the_contract_of_environments() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for source in [CLASS, GENERATOR] {
        let environment = environment(&folder, source);
        conformance::check(&environment, &game(7), &tokenizer(), &["3<|eos|>"]).unwrap();
        conformance::check(&environment, &game(7), &tokenizer(), &["3<|eos|>", "7<|eos|>"]).unwrap();
        conformance::check(&environment, &chat_task(), &tokenizer(), &["3<|eos|>"]).unwrap();
        let trajectory = played(&environment, &["3", "7"]).unwrap();
        let rewards: Vec<f64> = trajectory.steps().map(|step| step.reward).collect();
        assert_eq!(rewards, [0.0, 1.0]);
        assert_eq!(tokenizer().decode(&trajectory.tokens, false).unwrap(), "0-9:3<|eos|>>7<|eos|>");
    }
}

#[test]
fn an_episode_of_a_process_that_ends_is_played_again() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let fallen = folder.path().join("fallen");
    let source = |condition: &str| {
        format!(
            "import os
def play(task):
    seen = yield task['prompt']
    seen += yield seen
    if {condition}:
        open({fallen:?}, 'w').close()
        os._exit(3)
    yield seen
"
        )
    };
    let once = environment(&folder, &source(&format!("not os.path.exists({fallen:?})")));
    let trajectory = played(&once, &["1", "2", "3"]).unwrap();
    assert!(fallen.exists());
    // The observations repeat what has been written: 1, then 12.
    assert_eq!(tokenizer().decode(&trajectory.tokens, true).unwrap(), "0-9:112123");
    let always = environment(&folder, &source("True"));
    let error = played(&always, &["1", "2"]).unwrap_err().to_string();
    assert!(error.contains("environment python, task") && error.contains("exited with status 3"), "{error}");
}

#[test]
fn mistakes_of_an_environment_name_themselves() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let error = |source: &str| played(&environment(&folder, source), &["1"]).unwrap_err().to_string();
    let raised = error("def play(task):\n    yield task['prompt']\n    raise KeyError('door')\n");
    assert!(raised.contains("KeyError: 'door'") && raised.contains("env.py\", line 3"), "{raised}");
    let number = error("def play(task):\n    yield 5\n");
    assert!(number.contains("its observation 5 is neither text nor a list of messages"), "{number}");
    let refused = error("play = 3\n");
    assert!(
        refused.contains("neither a class with `reset` and `step` nor a generator function"),
        "{refused}"
    );
    let messages =
        error("def play(task):\n    yield task['prompt']\n    yield [{'role': 'user', 'content': '1'}]\n");
    assert!(messages.contains("its prompt is text, but it answered a turn with messages"), "{messages}");
    let endless = environment(
        &folder,
        "def play(task):\n    yield task['prompt']\n    while True:\n        yield '>'\n",
    );
    assert_eq!(played(&endless, &["1", "2", "3", "4"]).unwrap().steps().count(), 4);
    assert!(matches!(played(&endless, &["1", "2", "3", "4", "5"]), Err(EnvError::Over { .. })));
}

/// The prompt of a group's episodes is the same, what follows by chance is not, and an episode that is played again repeats it.
#[test]
fn each_episode_of_a_group_has_a_seed_of_its_own() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = "def play(task, seed, episode_seed):\n    yield str(seed)\n    yield str(episode_seed)\n";
    let environment = environment(&folder, source);
    let seen = |sample| {
        let random = RandomKey { sample, ..random() };
        let mut attempt = wait(Attempt::start(&environment, &game(7), &tokenizer(), 1000, random)).unwrap();
        let prompt = attempt.tokens().to_vec();
        wait(attempt.turn(turn(&tokens("1<|eos|>"), StopReason::StopToken))).unwrap();
        (prompt.clone(), attempt.tokens()[prompt.len()..].to_vec())
    };
    let (first, second, again) = (seen(0), seen(1), seen(0));
    assert_eq!(first, again);
    assert_eq!(first.0, second.0);
    assert_ne!(first.1, second.1);
}
