//! Python functions; without Python 3.10 or later these tests say so and pass.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rloom_function::{FunctionError, Judge, Limits, Peer, Pool, Role, Session};
use serde_json::json;

use crate::support::{LONG, judge_all, judge_one, judge_row, limits, wait_until_gone};

/// True if the tests can run.
fn has_python() -> bool {
    let check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = Command::new("python3").args(["-c", check]).status().is_ok_and(|status| status.success());
    if !found {
        eprintln!("skipped: there is no python3 of version 3.10 or later");
    }
    found
}

fn pool(folder: &Path, source: &str, role: Role, limits: Limits) -> Pool {
    let file = folder.join("rewards.py");
    std::fs::write(&file, source).unwrap();
    Pool::new(Peer::python(&format!("{}:score", file.display()), "python3", role), limits)
}

/// A judge with one process; the folder lives as long as the test.
fn judge(folder: &tempfile::TempDir, source: &str) -> Judge {
    pool(folder.path(), source, Role::Reward { group: false }, limits(1, LONG)).into()
}

#[test]
fn a_thousand_samples_are_judged_by_two_processes() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = "def score(completion, answer):\n    return float(completion == answer)\n";
    let started = Instant::now();
    let judge: Judge = pool(folder.path(), source, Role::Reward { group: false }, limits(2, LONG)).into();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let judge = &judge;
            scope.spawn(move || {
                for i in 0..250 {
                    let (text, value) = if (n + i) % 3 == 0 { ("2", 1.0) } else { ("3", 0.0) };
                    assert_eq!(judge_one(judge, text), Ok(Some(value)));
                }
            });
        }
    });
    eprintln!("1,000 samples, 2 processes, start included: {:.3} s", started.elapsed().as_secs_f64());
}

#[test]
fn exceptions_prints_and_bad_values_fail_their_call_alone() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let judge = judge(
        &folder,
        "import os, sys\n\
         def score(completion):\n\
         \x20   print('noise')\n\
         \x20   sys.stdout.buffer.write(b'more noise')\n\
         \x20   os.system('echo noise of a child; cat')\n\
         \x20   if completion == 'raise':\n\
         \x20       return 1 / 0\n\
         \x20   if completion == 'exit':\n\
         \x20       sys.exit(3)\n\
         \x20   return {'one': 1, 'nan': float('nan'), 'text': 'x', 'none': None, 'true': True}[completion]\n",
    );
    let message = |completion| match judge_one(&judge, completion) {
        Err(FunctionError::Raised { message, .. }) => message,
        other => panic!("{completion}: {other:?}"),
    };
    assert_eq!(judge_one(&judge, "one"), Ok(Some(1.0)));
    let division = message("raise");
    assert!(division.starts_with("ZeroDivisionError: division by zero\nTraceback"), "{division}");
    assert!(
        division.contains("rewards.py\", line 7, in score") && !division.contains("adapters"),
        "{division}"
    );
    assert!(message("nan").contains("it returned nan: a reward must be finite; return None where"));
    assert!(message("text").contains("'x', which is not a number"));
    assert!(message("exit").starts_with("SystemExit: 3"));
    assert_eq!(judge_one(&judge, "none"), Ok(None));
    assert_eq!(judge_one(&judge, "true"), Ok(Some(1.0)));
}

#[test]
fn crashes_and_hangs_leave_no_process() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = "import os, subprocess, sys\n\
         def score(completion):\n\
         \x20   if completion == 'crash':\n\
         \x20       print('last words', file=sys.stderr, flush=True)\n\
         \x20       os.abort()\n\
         \x20   if completion == 'hang':\n\
         \x20       subprocess.run(['sleep', '98771'])\n\
         \x20   return 1\n";
    let judge: Judge =
        pool(folder.path(), source, Role::Reward { group: false }, limits(1, Duration::from_secs(5))).into();
    let crash = judge_one(&judge, "crash").unwrap_err();
    assert!(
        matches!(&crash, FunctionError::Ended { status, stderr, .. }
            if status.contains("signal 6") && stderr.contains("last words")),
        "{crash}"
    );
    assert!(matches!(judge_one(&judge, "hang"), Err(FunctionError::TimedOut { .. })));
    wait_until_gone("98771");
    assert_eq!(judge_one(&judge, "fine"), Ok(Some(1.0)));
}

#[test]
fn functions_that_cannot_be_used_are_refused_with_the_reason() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = |source: &str| match judge(&folder, source).judge_or_check() {
        Err(FunctionError::Refused { message, .. }) => message,
        other => panic!("{source}: {other:?}"),
    };
    let missing = refused("def other(completion): pass\n");
    assert!(missing.contains("has no `score`; it has other"), "{missing}");
    let import = refused("import no_such_module\n");
    assert!(import.starts_with("ModuleNotFoundError: No module named 'no_such_module'"), "{import}");
    assert!(import.contains("rewards.py\", line 1"), "{import}");
    let syntax = refused("def score(completion:\n");
    assert!(syntax.contains("SyntaxError") && syntax.contains("line 1"), "{syntax}");
    let parameters = refused("def score(text, gold): pass\n");
    assert!(
        parameters.contains("its parameters (text, gold) fit no form; the supported forms are"),
        "{parameters}"
    );
    let absent = Pool::new(
        Peer::python("/no/such/file.py:score", "python3", Role::Reward { group: false }),
        limits(1, LONG),
    );
    assert!(absent.check().unwrap_err().to_string().contains("/no/such/file.py does not exist"));
    let interpreter =
        Pool::new(Peer::python("a.py:score", "/no/python", Role::Reward { group: false }), limits(1, LONG));
    assert!(matches!(interpreter.check(), Err(FunctionError::Start { .. })));
}

trait Check {
    fn judge_or_check(&self) -> Result<(), FunctionError>;
}

impl Check for Judge {
    fn judge_or_check(&self) -> Result<(), FunctionError> {
        self.check()
    }
}

#[test]
fn a_function_of_a_group_receives_all_its_completions() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = "def score(prompts, completions, unit, log_metric, **columns):\n\
         \x20   log_metric('mean', sum(map(len, completions)) / len(completions))\n\
         \x20   assert prompts == ['1 + 1 ='] * 3 and unit == ['cm'] * 3 and columns['trainer_state'].global_step == 3\n\
         \x20   return [max(map(len, completions)) - len(c) for c in completions]\n";
    let judge: Judge = pool(folder.path(), source, Role::Reward { group: true }, limits(1, LONG)).into();
    let row = json!({ "unit": "cm" });
    let verdicts = judge_row(&judge, &["a", "bbb", ""], row.as_object().unwrap()).unwrap();
    let values: Vec<_> = verdicts.verdicts.iter().map(|verdict| verdict.value).collect();
    assert_eq!(values, [Some(2.0), Some(0.0), Some(3.0)]);
    assert!((verdicts.metrics["mean"].as_f64().unwrap() - 4.0 / 3.0).abs() < 1e-12);
    let missing = judge_all(&judge, &["a"]).unwrap_err().to_string();
    assert!(missing.contains("nothing is known for its parameters `unit`"), "{missing}");
}

#[test]
fn classes_and_generators_play_episodes() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let class = "class score:\n\
         \x20   def reset(self, task):\n\
         \x20       self.turns = 0\n\
         \x20       return [{'role': 'user', 'content': task['prompt'] + task['unit']}]\n\
         \x20   def step(self, reply):\n\
         \x20       self.turns += 1\n\
         \x20       return f'{reply}?', 0.25, self.turns == 2\n";
    let generator = "def score(task, unit):\n\
         \x20   first = yield [{'role': 'user', 'content': task['prompt'] + unit}]\n\
         \x20   yield f'{first}?', 0.25\n\
         \x20   return 0.25\n";
    let task = json!({ "prompt": "x", "answer": "y", "task": 4, "row": { "unit": "cm" } });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for source in [class, generator] {
        let pool = pool(folder.path(), source, Role::Environment, limits(1, LONG));
        runtime.block_on(async {
            let (session, ask) = Session::begin(&pool, "a".into(), task.clone()).await.unwrap();
            assert_eq!(json!(ask.messages), json!({ "messages": [{ "role": "user", "content": "xcm" }] }));
            let answer = session.act("hm", "stop_token", false).await.unwrap();
            assert_eq!(json!(answer.ask.unwrap().messages), json!({ "text": "hm?" }));
            assert_eq!(answer.reward, Some(0.25));
            let last = session.act("ah", "stop_token", false).await.unwrap();
            assert_eq!((last.ask, last.reward), (None, Some(0.25)));
        });
    }
}
