//! Agents in the sandbox, which is a hidden command of the binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Finished, Sandbox};

const RECIPE: &str = r#"
[run]
seed = 1

[model.new]
family = "qwen3"
layers = 1
hidden_size = 16
heads = 2
kv_heads = 1
intermediate_size = 16
max_positions = 64

[tokenizer]
alphabet = "0123456789+="
chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"

[data]
generator = "arithmetic"
max_digits = 1

[environment]
kind = "agent"
command = ["python3", "-S", "-E", "agent.py"]
timeout_seconds = 60
attempts = 1
sandbox = { files = ["agent.py", "attempts.json"] }

[reward]
components = [{ kind = "environment" }]

[sampling]
max_new_tokens = 4

[[stage]]
name = "rl"
method = "grpo"
steps = 1
groups_per_batch = 2

[stage.algorithm]
group_size = 2
"#;

/// Asks the policy, plain and as a stream, makes the attempts of the file, and reports a reward.
const AGENT: &str = r#"
import http.client, json, os, socket, sys
from urllib.parse import urlsplit

def post(url, body):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.request("POST", parts.path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, text
    return text

print("the agent begins", flush=True)
chat = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
messages = [{"role": "user", "content": json.loads(os.environ["RLOOM_TASK"])["prompt"]}]
said = json.loads(post(chat, {"model": "policy", "messages": messages}))["choices"][0]["message"]["content"]
assert post(chat, {"model": "policy", "messages": messages, "stream": True}).rstrip().endswith("data: [DONE]")
assert sorted(os.listdir(".")) == ["agent.py", "attempts.json"]
for attempt in json.load(open("attempts.json")):
    try:
        exec(attempt)
    except OSError:
        continue
    sys.exit(f"it worked: {attempt}")
open("own", "w").write("of this episode")
post(os.environ["RLOOM_REWARD_URL"], {"value": len(said) % 2})
"#;

/// What an agent must not do. Each attempt raises an error, which is all that is wrong with it in the sandbox.
const ATTEMPTS: &str = r#"[
    "open('/etc/passwd')", "open('FOLDER/agent.py')", "open('FOLDER/runs/agent/config.toml')",
    "socket.create_connection(('127.0.0.1', PORT), 5)", "socket.create_server(('127.0.0.1', 0))",
    "socket.socket(socket.AF_UNIX)", "open('/proc/CALLER/environ')", "open('own')",
    "open([p for p in os.listdir('/proc') if p.isdigit() and b'RLOOM_TASK' in open(f'/proc/{p}/environ', 'rb').read() and int(p) != os.getpid()][0])"
]"#;

fn has_python() -> bool {
    std::path::Path::new("/usr/bin/python3").exists()
}

/// Trains with an agent in a tier; `None` if the machine does not have it.
fn train(sandbox: &Sandbox, tier: &str, more: &[&str]) -> Option<Finished> {
    let tier = format!("environment.sandbox.tier='{tier}'");
    let mut arguments = vec!["train", "agent.toml", "--quiet", "--set", tier.as_str()];
    arguments.extend(more.iter().flat_map(|more| ["--set", more]));
    let result = sandbox.run(&arguments);
    (!result.stderr.contains("this machine has no sandbox for programs")).then_some(result)
}

fn sandbox(agent: &str, attempts: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("agent.toml", RECIPE);
    sandbox.write("agent.py", agent);
    sandbox.write("attempts.json", attempts);
    sandbox
}

#[test]
fn agents_in_the_sandbox_reach_the_policy_alone() {
    if !has_python() {
        return;
    }
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    for tier in ["namespaces", "landlock"] {
        let sandbox = sandbox(AGENT, "");
        let attempts = ATTEMPTS
            .replace("PORT", &other.local_addr().unwrap().port().to_string())
            .replace("FOLDER", sandbox.path("").to_str().unwrap())
            .replace("CALLER", &std::process::id().to_string());
        sandbox.write("attempts.json", &attempts);
        let Some(result) = train(&sandbox, tier, &[]) else { continue };
        assert_eq!(result.code, Some(0), "{tier}: {}", result.text());
        let logs = std::fs::read_dir(sandbox.path("runs/agent/agents/rl")).unwrap();
        for log in logs.flatten() {
            assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "the agent begins\n", "{tier}");
        }
        // Without a sandbox the same agent does what it must not.
        let plain = RECIPE.replace(r#"sandbox = { files = ["agent.py", "attempts.json"] }"#, "");
        sandbox.write("agent.toml", &plain);
        let result = sandbox.run(&["train", "agent.toml", "--quiet", "--run-name", "plain"]);
        assert!(result.stderr.contains("exited with status 1"), "{}", result.text());
    }
}

#[test]
fn agents_in_the_sandbox_that_fail_or_hang_are_no_reward_of_zero() {
    if !has_python() {
        return;
    }
    let fails = "print('broken')\nraise SystemExit(3)";
    let hangs = "import os, time\nprint('it waits', flush=True)\nos.fork()\ntime.sleep(1000)";
    let grows = "print('it grows', flush=True)\nkept = [bytearray(1 << 20) for _ in range(400)]";
    for tier in ["namespaces", "landlock"] {
        for (agent, more, parts) in [
            (fails, "run.seed=1", ["exited with status 3", "broken"]),
            (hangs, "environment.timeout_seconds=1", ["reached a limit", "it waits"]),
            (grows, "environment.sandbox.memory_mib=64", ["the agent ", "MemoryError"]),
        ] {
            let sandbox = sandbox(agent, "");
            let Some(result) = train(&sandbox, tier, &[more]) else { continue };
            for part in parts {
                assert!(result.code != Some(0) && result.stderr.contains(part), "{part}: {}", result.text());
            }
        }
    }
}

/// A folder from which the recipes can be started.
fn with_recipes() -> Sandbox {
    let sandbox = Sandbox::new();
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    std::os::unix::fs::symlink(recipes, sandbox.path("recipes")).unwrap();
    sandbox
}

/// A few steps of a recipe, whose agents must not fail.
const SHORT: [&str; 8] = [
    "stage.warmup.steps=20",
    "stage.warmup.groups_per_batch=8",
    "stage.rl.steps=2",
    "stage.rl.groups_per_batch=2",
    "stage.rl.algorithm.group_size=4",
    "environment.attempts=1",
    "eval.tasks=4",
    "run.name='short'",
];

fn train_short(sandbox: &Sandbox, recipe: &str) -> std::process::Child {
    let mut arguments = vec!["train", recipe, "--quiet"];
    arguments.extend(SHORT.iter().flat_map(|more| ["--set", more]));
    sandbox.command(&arguments).stderr(Stdio::piped()).spawn().unwrap()
}

fn finish(run: std::process::Child) {
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs the packages of .ci/agents.txt: run by .ci/agents"]
fn agents_of_frameworks_train() {
    let python = std::env::var("RLOOM_TEST_PYTHON").expect("RLOOM_TEST_PYTHON names an interpreter");
    for program in ["langgraph_agent.py", "openai_agents_sdk.py"] {
        let sandbox = with_recipes();
        // The helper is one file without dependencies.
        let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/rloom/agent.py");
        std::fs::copy(helper, sandbox.path("rloom.py")).unwrap();
        let run = train_short(&sandbox, "recipes/agent-tools.toml");
        let mut agent = Command::new(&python)
            .args([&format!("recipes/{program}"), "runs/short/agents/lease.json"])
            .current_dir(sandbox.path(""))
            .env("PYTHONPATH", sandbox.path(""))
            .spawn()
            .unwrap();
        finish(run);
        // It ends by itself, but later.
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
}

#[test]
#[ignore = "a minute: run by .ci/agents"]
fn agents_that_repair_repositories_train() {
    let sandbox = with_recipes();
    let data = Command::new("python3").arg("recipes/coding_data.py").current_dir(sandbox.path("")).status();
    assert!(data.unwrap().success());
    finish(train_short(&sandbox, "recipes/coding-agent.toml"));
}
