use std::time::Duration;

use rloom_function::{FunctionError, Judge, Limits, Malformed, Peer, Pool, Role};

use crate::support::{LONG, judge_all, judge_one, limits, script, sleeps, wait_until_gone};

const ONE: Role = Role::Reward { group: false };

fn judge(answer: &str, workers: usize, timeout: Duration) -> Judge {
    Pool::new(Peer::command(&script(answer), ONE), limits(workers, timeout)).into()
}

/// Answers 1 for completions that contain "good", else null.
const GOOD: &str = r#"case "$line" in *good*) v=1;; *) v=null;; esac; echo '{"id":'$id',"verdicts":['$v']}'"#;

#[test]
fn verdicts_are_numbers_null_or_objects() {
    let good = judge(GOOD, 2, LONG);
    assert_eq!(judge_one(&good, "good"), Ok(Some(1.0)));
    assert_eq!(judge_one(&good, "bad"), Ok(None));
    let object =
        r#"echo '{"id":'$id',"verdicts":[{"value":0.5,"solved":true,"parsed":false}],"metrics":{"a":2}}'"#;
    let verdicts = judge_all(&judge(object, 1, LONG), &["x"]).unwrap();
    let verdict = verdicts.verdicts[0];
    assert_eq!((verdict.value, verdict.solved, verdict.parsed), (Some(0.5), Some(true), Some(false)));
    assert_eq!(verdicts.metrics["a"], 2);
}

#[test]
fn calls_run_at_the_same_time_and_each_gets_its_own_answer() {
    let good = judge(GOOD, 3, LONG);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let good = &good;
            scope.spawn(move || {
                for i in 0..20 {
                    let (text, value) = if (n + i) % 2 == 0 { ("good", Some(1.0)) } else { ("bad", None) };
                    assert_eq!(judge_one(good, text), Ok(value));
                }
            });
        }
    });
}

#[test]
fn a_crash_is_reported_with_status_and_stderr_and_costs_no_other_call() {
    let folder = tempfile::tempdir().unwrap();
    let crashed = folder.path().join("crashed");
    // The first process dies in the call, the second answers.
    let once = format!("if [ -e {0} ]; then {GOOD}; else touch {0}; exit 3; fi", crashed.display());
    let once = judge(&once, 1, LONG);
    let crash = judge_one(&once, "good").unwrap_err();
    assert!(matches!(crash, FunctionError::Ended { .. }) && crash.is_retryable(), "{crash}");
    assert_eq!(judge_one(&once, "good"), Ok(Some(1.0)));
    let always = judge("echo last words >&2; exit 3", 1, LONG);
    let Err(FunctionError::Ended { status, stderr, .. }) = judge_one(&always, "x") else { panic!() };
    assert_eq!((status.as_str(), stderr.as_str()), ("exited with status 3", "last words"));
    let killed = judge("kill -9 $$", 1, LONG);
    let Err(FunctionError::Ended { status, .. }) = judge_one(&killed, "x") else { panic!() };
    assert!(status.contains("signal 9"), "{status}");
}

#[test]
fn a_call_that_hangs_is_killed_with_its_children_and_costs_no_other() {
    let answer = format!(r#"case "$line" in *hang*) sleep 98761;; *) {GOOD};; esac"#);
    let judge = judge(&answer, 2, Duration::from_secs(1));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| judge_one(&judge, "hang"));
        for _ in 0..20 {
            assert_eq!(judge_one(&judge, "good"), Ok(Some(1.0)));
        }
        let error = hanging.join().unwrap().unwrap_err();
        assert!(matches!(error, FunctionError::TimedOut { .. }), "{error}");
    });
    wait_until_gone("98761");
    assert_eq!(judge_one(&judge, "good"), Ok(Some(1.0)));
}

#[test]
fn answers_that_violate_the_protocol_are_named() {
    let problem = |answer: &str| match judge_one(&judge(answer, 1, LONG), "x") {
        Err(FunctionError::Malformed { problem, .. }) => problem,
        other => panic!("{answer}: {other:?}"),
    };
    for garbage in ["echo hello", r#"echo '{"id":'$id',"verdicts":[NaN]}'"#, "echo", "printf '\\377\\376\\n'"]
    {
        assert!(matches!(problem(garbage), Malformed::NotAnAnswer { .. }), "{garbage}");
    }
    assert!(matches!(problem(r#"echo '{"id":7,"verdicts":[1]}'"#), Malformed::WrongRequest { found: 7, .. }));
    assert!(matches!(problem(r#"echo '{"id":'$id'}'"#), Malformed::Missing { .. }));
    for value in [r#""1""#, "true", "[1]", r#"{"value":1,"score":2}"#] {
        let answer = format!(r#"echo '{{"id":'$id',"verdicts":[{value}]}}'"#);
        assert!(matches!(problem(&answer), Malformed::Value { .. }), "{value}");
    }
    let two = r#"echo '{"id":'$id',"verdicts":[1,2]}'"#;
    assert!(matches!(problem(two), Malformed::Count { expected: 1, found: 2 }));
    let endless = "yes endless | tr -d '\\n'";
    assert!(matches!(problem(endless), Malformed::TooLong { .. }));
}

#[test]
fn a_worker_that_closes_its_output_or_reads_nothing_ends_its_call() {
    let closed = judge("exec 1>&-; sleep 98762", 1, LONG);
    assert!(matches!(judge_one(&closed, "x"), Err(FunctionError::Ended { .. })));
    wait_until_gone("98762");
    let deaf =
        ["sh", "-c", r#"read -r line; echo '{"id":1,"ready":{"v":1}}'; sleep 98763"#].map(str::to_owned);
    let deaf: Judge = Pool::new(Peer::command(&deaf, ONE), limits(1, Duration::from_secs(1))).into();
    let large = "x".repeat(1 << 20);
    assert!(matches!(judge_one(&deaf, &large), Err(FunctionError::TimedOut { .. })));
    wait_until_gone("98763");
}

#[test]
fn what_a_worker_writes_between_calls_costs_no_call() {
    let chatty = judge(&format!("{GOOD}; echo chatter"), 1, LONG);
    assert_eq!(judge_one(&chatty, "good"), Ok(Some(1.0)));
    // Until the reader has it.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(judge_one(&chatty, "good"), Ok(Some(1.0)));
}

#[test]
fn programs_that_do_not_start_or_refuse_are_errors() {
    let pool = |command: &[&str]| {
        let command: Vec<String> = command.iter().map(|&part| part.to_owned()).collect();
        Pool::new(Peer::command(&command, ONE), limits(1, LONG))
    };
    let missing = pool(&["/no/such/program"]).check();
    assert!(
        matches!(&missing, Err(FunctionError::Start { program, .. }) if program == "/no/such/program"),
        "{missing:?}"
    );
    let refusing =
        pool(&["sh", "-c", r#"read -r l; echo '{"id":1,"error":{"kind":"refused","message":"no"}}'"#]);
    for _ in 0..2 {
        assert!(matches!(refusing.check(), Err(FunctionError::Refused { message, .. }) if message == "no"));
    }
    let newer = pool(&["sh", "-c", r#"read -r l; echo '{"id":1,"ready":{"v":2}}'"#]).check();
    assert!(newer.unwrap_err().to_string().contains("version 2"));
    assert!(matches!(pool(&["true"]).check(), Err(FunctionError::Ended { .. })));
    assert_eq!(judge(GOOD, 1, LONG).check(), Ok(()));
}

#[test]
fn processes_are_replaced_after_their_calls() {
    let process = r#"echo '{"id":'$id',"verdicts":['$$']}'"#;
    let peer = || Peer::command(&script(process), ONE);
    let ids = |limits: Limits| -> Vec<Option<f64>> {
        let judge: Judge = Pool::new(peer(), limits).into();
        (0..4).map(|_| judge_one(&judge, "x").unwrap()).collect()
    };
    let kept = ids(limits(1, LONG));
    assert!(kept.iter().all(|id| *id == kept[0]), "{kept:?}");
    let recycled = ids(Limits { recycle: Some(2), ..limits(1, LONG) });
    assert!(
        recycled[0] == recycled[1] && recycled[2] == recycled[3] && recycled[1] != recycled[2],
        "{recycled:?}"
    );
    // A shell is larger than a byte and smaller than a GiB.
    let large = ids(Limits { memory: Some(1), ..limits(1, LONG) });
    assert!(large.windows(2).all(|pair| pair[0] != pair[1]), "{large:?}");
    let small = ids(Limits { memory: Some(1 << 30), ..limits(1, LONG) });
    assert!(small.iter().all(|id| *id == small[0]), "{small:?}");
}

#[test]
fn a_pool_that_closes_ends_calls_and_processes() {
    let answer = format!(r#"case "$line" in *hang*) sleep 98764;; *) {GOOD};; esac"#);
    let judge = judge(&answer, 2, LONG);
    assert_eq!(judge_one(&judge, "good"), Ok(Some(1.0)));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| judge_one(&judge, "hang"));
        while sleeps("98764").is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        judge.close();
        assert!(matches!(hanging.join().unwrap(), Err(FunctionError::Closed { .. })));
    });
    assert!(matches!(judge_one(&judge, "good"), Err(FunctionError::Closed { .. })));
    drop(judge);
    assert_eq!(sleeps("98764"), Vec::<std::path::PathBuf>::new());
}
