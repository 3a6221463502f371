//! Python functions; without Python 3.10 or later these tests say so and pass.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rloom_function::{
    Completions, FunctionError, Judge, Limits, LossAnswer, LossCall, MethodFunction, Peer, Pool, Role,
    Session,
};
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

/// A function over numbers, `f` of a file with this source.
fn method(folder: &Path, source: &str, role: Role) -> MethodFunction {
    let file = folder.join("method.py");
    std::fs::write(&file, source).unwrap();
    MethodFunction::new(&format!("{}:f", file.display()), "python3", role, LONG).unwrap()
}

fn advantages_of(source: &str) -> Result<Vec<Vec<f64>>, FunctionError> {
    let folder = tempfile::tempdir().unwrap();
    let row = json!({ "level": 3 });
    let rows = vec![row.as_object().unwrap(); 3];
    method(folder.path(), source, Role::Advantage).advantages(&Completions {
        step: 5,
        rewards: vec![Some(0.1), None, Some(-2.5)],
        groups: vec![0, 0, 1],
        lengths: vec![2, 3, 1],
        truncated: vec![false, true, false],
        components: json!({ "exact": [0.1, null, -2.5] }).as_object().unwrap().clone(),
        rows,
    })
}

fn message(error: FunctionError) -> String {
    match error {
        FunctionError::Raised { message, .. } | FunctionError::Refused { message, .. } => message,
        other => format!("another error: {other}"),
    }
}

#[test]
fn advantages_are_for_completions_or_for_tokens() {
    if !has_python() {
        return;
    }
    let whole = "def f(rewards, groups, lengths, truncated, components, rows, step):\n\
                 \x20   assert (groups, lengths, truncated, step) == ([0, 0, 1], [2, 3, 1], [False, True, False], 5)\n\
                 \x20   assert components == {'exact': rewards} and rows[2]['level'] == 3\n\
                 \x20   return [None if r is None else 3 * r for r in rewards]\n";
    assert_eq!(advantages_of(whole), Ok(vec![vec![0.1 * 3.0], vec![0.0], vec![-7.5]]));
    let nested = "def f(lengths):\n    return [[float(n)] * n for n in lengths]\n";
    let expected = vec![vec![2.0; 2], vec![3.0; 3], vec![1.0]];
    assert_eq!(advantages_of(nested), Ok(expected.clone()));
    let flat = "def f(lengths):\n    return [float(n) for n in lengths for _ in range(n)]\n";
    assert_eq!(advantages_of(flat), Ok(expected));
}

#[test]
fn advantages_that_do_not_fit_are_errors() {
    if !has_python() {
        return;
    }
    for (body, expected) in [
        ("rewards, tokens: 1", "its parameters `tokens` are not among step, rewards, groups, lengths"),
        ("rewards: [1, 2]", "it returned 2 advantages for 3 completions"),
        ("rewards: [1, [1, 2], 1]", "it returned 2 advantages for the 3 tokens of completion 1"),
        ("rewards: [1, float('nan'), 1]", "it returned nan as advantage"),
        ("rewards: ['x', 1, 1]", "it returned 'x' as advantage, which is not a number"),
        ("rewards: 7", "it returned 7 instead of a list of 3 advantages"),
        ("rewards: 1 / 0", "ZeroDivisionError: division by zero\nTraceback"),
    ] {
        let found = message(advantages_of(&format!("f = lambda {body}\n")).unwrap_err());
        assert!(found.contains(expected), "{body}: {found}");
    }
}

fn loss_of(source: &str) -> Result<LossAnswer, FunctionError> {
    let folder = tempfile::tempdir().unwrap();
    let logprob = [-0.1, -1.0e-30, -7.25];
    method(folder.path(), source, Role::Loss).loss(&LossCall {
        step: 5,
        lengths: vec![2, 1],
        divisors: vec![10.0, 5.0],
        masked: vec![false, true],
        tokens: 30,
        sequences: 6,
        completion_limit: 8,
        logprob: &logprob,
        held: &logprob,
        old: &logprob,
        behavior: &logprob,
        reference: &[],
        entropy: &[0.5; 3],
        advantage: &[0.3; 3],
    })
}

#[test]
fn a_loss_gets_exact_numbers_and_returns_coefficients() {
    if !has_python() {
        return;
    }
    let source = "def f(logprob, reference, mask, divisor, lengths, tokens, sequences, completion_limit, step):\n\
                  \x20   assert list(mask) == [1, 1, 0] and list(divisor) == [10, 10, 5] and lengths == [2, 1]\n\
                  \x20   assert (tokens, sequences, completion_limit, step) == (30, 6, 8, 5)\n\
                  \x20   assert len(reference) == 0\n\
                  \x20   return sum(logprob), logprob\n";
    let logprob = [-0.1_f32, -1.0e-30, -7.25].map(f64::from);
    let answer = loss_of(source).unwrap();
    assert_eq!((answer.d_logprob, answer.d_entropy), (logprob.to_vec(), vec![0.0; 3]));
    assert_eq!(answer.value, logprob[0] + logprob[1] + logprob[2]);
    let with_entropy = loss_of("f = lambda entropy: (0, [1, 2, 3], [-e for e in entropy])\n").unwrap();
    assert_eq!(with_entropy.d_entropy, [-0.5; 3]);
}

#[test]
fn losses_that_do_not_fit_are_errors() {
    if !has_python() {
        return;
    }
    for (body, expected) in [
        ("logprob: 1.0", "it must return (loss, d_logprob) or (loss, d_logprob, d_entropy)"),
        ("logprob: (1.0, [1, 2])", "it returned 2 numbers as d_logprob for 3 tokens"),
        ("logprob: (1.0, [1, 2, 3], [])", "it returned 0 numbers as d_entropy for 3 tokens"),
        ("logprob: (float('inf'), [1, 2, 3])", "it returned inf as loss"),
        ("logprob: (1.0, [1, float('nan'), 3])", "it returned nan as d_logprob"),
        ("logprobs: 1", "its parameters `logprobs` are not among logprob, held, old"),
    ] {
        let found = message(loss_of(&format!("f = lambda {body}\n")).unwrap_err());
        assert!(found.contains(expected), "{body}: {found}");
    }
}
