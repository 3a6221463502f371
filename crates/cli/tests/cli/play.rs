//! `rloom env play`: with input from a pipe and at a terminal.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and says that it is skipped"
)]

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Finished, Sandbox, TINY};

/// Plays with lines from a pipe.
fn piped(sandbox: &Sandbox, arguments: &[&str], input: &str) -> Finished {
    let all: Vec<&str> = ["env", "play"].iter().chain(arguments).copied().collect();
    let mut command = sandbox.command(&all);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that has ended reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    sandbox.finished(&child.wait_with_output().unwrap())
}

/// The recipe TINY with another environment.
fn recipe(environment: &str) -> String {
    TINY.replace("[reward]", &format!("[environment]\n{environment}\n\n[reward]"))
}

fn has_python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = Command::new("python3").args(["-c", check]).status().is_ok_and(|status| status.success());
    if !found {
        println!("skipped: there is no python3 of version 3.10 or later");
    }
    found
}

#[test]
fn a_game_is_played_to_its_end_or_left() {
    let sandbox = Sandbox::new();
    let over = piped(&sandbox, &["frozen_lake", "--set", "slippery=false"], "R\nD\nD\nD\nD\n");
    assert_eq!(over.code, Some(0), "{}", over.text());
    let (start, end) = (
        "SFFF/FFHF/FFFF/FHFG:\n\n@FFF\nFFHF\nFFFF\nFHFG\nreward 0\n01SFF#\n",
        "reward 0\n\nSFFF\nFFHF\nFFFF\nF@FG\ntotal 0\n",
    );
    assert!(over.stdout.starts_with(start) && over.stdout.ends_with(end), "{}", over.text());
    assert!(over.stderr.ends_with("the episode is over after 4 turns\n"), "{}", over.text());
    assert!(
        over.stderr.starts_with("Frozen lake:") && over.stderr.contains("moves: L D R U"),
        "{}",
        over.text()
    );

    let left = piped(&sandbox, &["tic_tac_toe", "--opponent", "best"], "5\nhello\n\n");
    assert_eq!(left.code, Some(0), "{}", left.text());
    let boards = left.stdout.matches("\n\nO..\n.X.\n...\n").count();
    assert_eq!((boards, left.stdout.matches("reward -0.1\n?\n").count()), (3, 1), "{}", left.text());
    assert!(left.stderr.contains("`hello` is not a legal move"), "{}", left.text());
    assert!(left.stderr.ends_with("the episode was not finished\n"), "{}", left.text());
    // The seed and the task choose the episode.
    let play = |more: &[&str]| piped(&sandbox, &[&["frozen_lake"], more].concat(), "").stdout;
    assert_eq!(play(&[]), play(&["--seed", "0"]));
    assert!(play(&[]) != play(&["--seed", "1"]) && play(&[]) != play(&["--task", "1"]));
}

#[test]
fn programs_read_one_object_for_each_observation_and_reward() {
    let sandbox = Sandbox::new();
    let played = piped(&sandbox, &["frozen_lake", "--json"], "R\nD\nD\nD\n");
    let lines: Vec<Value> = played.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["observation"], "SFFF/FFHF/FFFF/FHFG:");
    assert_eq!((&lines[0]["board"], &lines[0]["moves"][3]), (&"@FFF\nFFHF\nFFFF\nFHFG".into(), &"U".into()));
    assert_eq!((lines[1]["reward"].as_f64(), &lines[2]["observation"]), (Some(0.0), &"01SFF#".into()));
    assert_eq!(lines.last().unwrap()["total"], 0.0);
    assert_eq!(lines.len(), 1 + 3 * 2 + 2);
}

#[test]
fn names_and_files_that_cannot_be_played_are_errors() {
    let sandbox = Sandbox::new();
    sandbox.write("broken.toml", "[run\n");
    for (arguments, expected) in [
        (&["chess"][..], "`chess` is neither a game nor a recipe"),
        (&["missing.toml"], "`missing.toml` is neither a game nor a recipe"),
        (&["."], "`.` is neither a game nor a recipe"),
        (&["tools"], "`tools` has no tasks of its own: it is played with a recipe that has them"),
        (&["single_turn"], "`single_turn` has no tasks of its own"),
        (&["broken.toml"], "broken.toml:1"),
        (&["frozen_lake", "--set", "slippery"], "expected KEY=VALUE"),
        (&["frozen_lake", "--set", "ice=true"], "unknown field `ice`"),
        (&["frozen_lake", "--task", "999999999999"], "999999999999"),
    ] {
        let refused = piped(&sandbox, arguments, "");
        assert!(
            refused.code == Some(2) && refused.stderr.contains(expected),
            "{arguments:?}: {}",
            refused.text()
        );
        assert!(refused.stdout.is_empty());
    }
    let odd = piped(&sandbox, &["frozen_lake"], "\u{e000}\n");
    assert!(odd.code == Some(2) && odd.stderr.contains("U+E000"), "{}", odd.text());
    let listed = sandbox.run(&["env", "list"]).stdout;
    assert!(listed.contains("Tools that the policy calls. Played with a recipe.\n"), "{listed}");
    assert!(listed.contains("Sudoku on a grid of 4×4.\n"), "{listed}");
}

#[test]
fn tools_are_named_and_called() {
    let sandbox = Sandbox::new();
    sandbox.write("tools.toml", &recipe("kind = \"tools\"\ntools = [{ kind = \"calculator\" }]"));
    let played = piped(&sandbox, &["tools.toml"], "<calculator>2*3</calculator>\nthe answer is é\n");
    assert_eq!(played.code, Some(0), "{}", played.text());
    assert!(played.stdout.ends_with("\n<result>6</result>\n"), "{}", played.text());
    assert!(played.stderr.contains("tools: calculator(expression)\na call: "));
    assert!(played.stderr.ends_with("the episode is over after 2 turns\n"), "{}", played.text());
}

/// Starts a program at a terminal of its own, and types whenever it has asked. Writes the status and all that was on the screen.
const TERMINAL: &str = r#"
import json, os, pty, sys
keys, program = json.loads(sys.argv[1]), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(program[0], program)
screen, typed = b"", 0
while True:
    try:
        read = os.read(terminal, 65536)
    except OSError:
        break
    if not read:
        break
    screen += read
    if keys and screen[typed:].endswith(b"> "):
        typed = len(screen)
        os.write(terminal, keys.pop(0).encode())
_, status = os.waitpid(pid, 0)
sys.stdout.write(json.dumps({"code": os.waitstatus_to_exitcode(status), "screen": screen.decode()}))
"#;

/// Plays at a terminal. Returns the exit code, which is negative for a signal, and the screen.
fn typed(sandbox: &Sandbox, arguments: &[&str], keys: &[&str]) -> (i64, String) {
    let program = env!("CARGO_BIN_EXE_rloom");
    let output = Command::new("python3")
        .args(["-c", TERMINAL, &serde_json::to_string(keys).unwrap(), program, "env", "play"])
        .args(arguments)
        .current_dir(sandbox.path("."))
        .env("TERM", "dumb")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    (result["code"].as_i64().unwrap(), result["screen"].as_str().unwrap().replace('\r', ""))
}

#[test]
fn a_person_plays_at_a_terminal() {
    if !has_python() {
        return;
    }
    let sandbox = Sandbox::new();
    let (code, screen) = typed(&sandbox, &["tic_tac_toe"], &["0\n", "\u{e000}\n", "\u{4}"]);
    assert!(screen.contains("`0` is not a legal move\nreward -0.1\n"), "{screen}");
    // A character that has no token does not end the game.
    assert!(screen.contains("warning: the tokenizer has no token for"), "{screen}");
    assert!(code == 0 && screen.ends_with("> \nthe episode was not finished\n"), "{code} {screen}");

    let (code, screen) = typed(&sandbox, &["frozen_lake"], &["R\n", "D\n", "D\n", "D\n", "\n", "\u{4}"]);
    let (first, second) = screen.split_once("Enter: the next episode, Ctrl-D: the end\n> \n").unwrap();
    assert!(first.ends_with("total 0\nthe episode is over after 4 turns\n"), "{first}");
    let next = piped(&sandbox, &["frozen_lake", "--task", "1"], "");
    assert!(second.starts_with(next.stdout.lines().next().unwrap()), "{second}");
    assert!(code == 0 && second.ends_with("> \nthe episode was not finished\n"), "{code} {second}");
    let ended = typed(&sandbox, &["frozen_lake"], &["R\n", "D\n", "D\n", "D\n", "\u{4}"]);
    assert!(ended.0 == 0 && ended.1.ends_with("Ctrl-D: the end\n> \n"), "{}", ended.1);

    let (code, screen) = typed(&sandbox, &["frozen_lake"], &["R\n", "\u{3}"]);
    assert_eq!(code, -2, "{screen}");
}

/// What an environment writes cannot control the terminal, and Ctrl-C ends its process.
#[test]
fn an_environment_in_python_is_played_at_a_terminal() {
    if !has_python() {
        return;
    }
    let sandbox = Sandbox::new();
    let folder = sandbox.path(".").canonicalize().unwrap().display().to_string();
    sandbox.write(
        "env.py",
        &format!(
            "import os\nopen('{folder}/pid', 'w').write(str(os.getpid()))\ndef play(task):\n    reply = yield task['prompt']\n    \
             print('noise')\n    reply = yield '\\x1b[31mred ' + reply, 0.5\n    return 1.0\n"
        ),
    );
    let environment = "kind = \"python\"\nfunction = \"env.py:play\"\nworkers = 1";
    sandbox.write("game.toml", &recipe(environment).replace("\"exact\"", "\"environment\""));
    let (code, screen) = typed(&sandbox, &["game.toml"], &["hello\n", "bye\n", "\u{4}"]);
    assert!(screen.contains("reward 0.5\n\u{fffd}[31mred hello\n"), "{screen}");
    assert!(
        code == 0 && screen.contains("reward 1\ntotal 1.5\nthe episode is over after 2 turns\n"),
        "{screen}"
    );
    assert_eq!(typed(&sandbox, &["game.toml"], &["\u{3}"]).0, -2);
    let pid = std::fs::read_to_string(sandbox.path("pid")).unwrap();
    while std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|command| command.contains("python"))
    {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    sandbox.write("env.py", "def play(task):\n    yield task['prompt']\n    raise ValueError('broken')\n");
    let failed = piped(&sandbox, &["game.toml"], "hello\n");
    assert!(failed.code == Some(1) && failed.stderr.contains("ValueError: broken"), "{}", failed.text());
}
