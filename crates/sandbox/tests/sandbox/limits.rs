//! Output and input, descriptors, and failures of the machine.

use rloom_sandbox::SandboxError;

use super::*;

#[test]
fn a_flood_of_output_is_cut_off() {
    in_each_tier(|sandbox| {
        for (script, is_error) in [("yes", false), ("yes >&2", true)] {
            let mut execution = shell(script);
            execution.limits.output = 10_000;
            let outcome = sandbox.run(&execution).unwrap();
            assert_eq!(outcome.ending, Ending::OutputLimit);
            let kept = if is_error { &outcome.stderr } else { &outcome.stdout };
            assert_eq!(kept.len(), 10_000);
        }
    });
}

#[test]
fn a_single_write_of_any_size_is_cut_off() {
    let text_of = "import os\ndata = bytes(64 << 20)\nfor n in (2, 1, 3):\n  try: os.write(n, data)\n  except OSError: pass";
    let Some(mut execution) = script(text_of) else { return };
    execution.reports = true;
    in_each_tier(|sandbox| {
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!(outcome.ending, Ending::OutputLimit);
        assert_eq!(outcome.stderr.len() as u64, execution.limits.output);
        assert!(outcome.stdout.is_empty() && outcome.report.is_empty());
    });
}

#[test]
fn all_output_arrives_up_to_the_limit() {
    in_each_tier(|sandbox| {
        let mut execution = shell("head -c 500000 /dev/zero; head -c 400000 /dev/zero >&2");
        execution.limits.output = 500_000;
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!(outcome.ending, Ending::Exited(0));
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (500_000, 400_000));
    });
}

#[test]
fn large_input_may_be_read_or_not() {
    let stdin = vec![b'x'; 3 << 20];
    in_each_tier(|sandbox| {
        let mut execution = shell("wc -c");
        execution.stdin = stdin.clone();
        assert_eq!(stdout(sandbox, &execution).trim(), (3 << 20).to_string());
        let mut execution = shell("exit 4");
        execution.stdin = stdin.clone();
        assert_eq!(sandbox.run(&execution).unwrap().ending, Ending::Exited(4));
        // A program that waits for its input has the end of it.
        assert_eq!(stdout(sandbox, &shell("cat; echo end")), "end\n");
    });
}

#[test]
fn a_report_is_apart_from_the_output() {
    in_each_tier(|sandbox| {
        let mut execution = shell("echo output; echo report >&3");
        execution.reports = true;
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!(
            (text(&outcome.stdout), text(&outcome.report)),
            ("output\n".to_owned(), "report\n".to_owned())
        );
        execution.reports = false;
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!((outcome.ending, text(&outcome.report)), (Ending::Exited(2), String::new()));
    });
}

#[test]
fn signals_are_reported() {
    in_each_tier(|sandbox| {
        let outcome = sandbox.run(&shell("kill -SEGV $$")).unwrap();
        // Without a user of its own, a program cannot send signals.
        assert!(matches!(outcome.ending, Ending::Signaled(11) | Ending::Exited(_)), "{:?}", outcome.ending);
    });
}

#[test]
fn failures_of_the_machine_are_errors() {
    in_each_tier(|sandbox| {
        let error = sandbox.run(&command(&["rloom-no-such-program"])).unwrap_err();
        assert!(matches!(&error, SandboxError::NotStarted { .. }) && !error.is_retryable(), "{error}");
        let mut execution = shell("true");
        execution.files = vec![InputFile::new("../file", "x")];
        assert!(matches!(sandbox.run(&execution), Err(SandboxError::FileName { .. })));
        execution.files = vec![InputFile::new("same", "x"), InputFile::new("same", "y")];
        let error = sandbox.run(&execution).unwrap_err();
        assert!(matches!(&error, SandboxError::Failed { .. }) && error.is_retryable(), "{error}");
    });
    let no_helper = Program { path: "/bin/false".into(), arguments: Vec::new() };
    let error = Sandbox::detect(&no_helper, Choice::Auto).unwrap_err();
    assert!(matches!(&error, SandboxError::Unavailable { reasons } if reasons.len() == 2), "{error}");
}

#[test]
fn a_link_in_place_of_an_output_is_not_followed() {
    in_each_tier(|sandbox| {
        let mut execution = shell("ln -s /etc/passwd made; mkfifo pipe");
        execution.outputs = vec!["made".to_owned(), "pipe".to_owned()];
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!((outcome.ending, outcome.outputs.len()), (Ending::Exited(0), 0));
    });
}

#[test]
fn executions_at_the_same_time_do_not_meet() {
    in_each_tier(|sandbox| {
        std::thread::scope(|scope| {
            for number in 0..6 {
                scope.spawn(move || {
                    let script = format!("test ! -e file && echo {number} > file && sleep 0.2 && cat file");
                    assert_eq!(stdout(sandbox, &shell(&script)), format!("{number}\n"));
                });
            }
        });
    });
}
