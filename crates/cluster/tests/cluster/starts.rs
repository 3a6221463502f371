//! Starts, output and exits.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rloom_cluster::{ClusterError, ProcessSpec};
use rloom_wire::WireError;

use crate::{Machine, alive, mark, shell, soon, wait_for_output, wait_until_alive, wait_until_gone};

#[test]
fn an_exit_has_its_code_and_the_end_of_both_outputs() {
    let machine = Machine::new();
    let process = machine.start("echo to output; echo Traceback >&2; exit 3");
    let exit = process.wait(soon()).unwrap();
    assert_eq!((exit.code, exit.signal, exit.stopped, exit.is_success()), (Some(3), None, false, false));
    assert!(exit.output.contains("to output\n") && exit.output.contains("Traceback\n"), "{}", exit.output);
    assert_eq!(process.exited().unwrap(), Some(exit.clone()));
    assert_eq!(process.output(soon()).unwrap(), exit.output);
    let error = process.ended(exit).to_string();
    assert!(error.starts_with("rank 2 on node 0 at 127.0.0.1:"), "{error}");
    assert!(error.contains("ended with exit code 3") && error.ends_with("\n  | Traceback"), "{error}");
}

#[test]
fn an_exit_has_its_signal() {
    let machine = Machine::new();
    let exit = machine.start("kill -ABRT $$").wait(soon()).unwrap();
    assert_eq!((exit.code, exit.signal), (None, Some(6)));
    assert!(exit.to_string().contains("was ended by SIGABRT"), "{exit}");
}

#[test]
fn a_flood_of_output_is_read_to_its_end() {
    let machine = Machine::new();
    let process = machine.start("head -c 40000000 /dev/zero | tr '\\0' x >&2; echo; echo the end; exit 7");
    let exit = process.wait(soon()).unwrap();
    assert_eq!(exit.code, Some(7));
    assert!(exit.output.ends_with("\nthe end\n") && exit.output.len() < 100_000, "{}", exit.output.len());
}

#[test]
fn environment_and_directory_are_those_of_the_process() {
    let machine = Machine::new();
    let folder = tempfile::tempdir().unwrap();
    let mut spec = shell("pwd; echo [$A_VARIABLE] [$RLOOM_TOKEN]");
    spec.environment.insert("A_VARIABLE".to_owned(), "a value".to_owned());
    spec.directory = Some(folder.path().to_owned());
    let exit = machine.node.start(&spec, soon()).unwrap().wait(soon()).unwrap();
    assert!(exit.output.contains(&format!("{}\n", folder.path().display())), "{}", exit.output);
    assert!(exit.output.contains("[a value] []\n"), "the run's token is not inherited: {}", exit.output);
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let machine = Machine::new();
    let start = |spec: &ProcessSpec| machine.node.start(spec, soon()).unwrap_err().to_string();
    let error = start(&ProcessSpec { program: "no-such-program".to_owned(), ..shell("") });
    assert!(error.starts_with("could not start rank 2 on node 0 at"), "{error}");
    assert!(error.contains("`no-such-program`: No such file"), "{error}");
    let error = start(&ProcessSpec { directory: Some("/no/such/folder".into()), ..shell("") });
    assert!(error.ends_with("its working directory /no/such/folder does not exist"), "{error}");
    // The node is not affected.
    assert!(machine.start("exit 0").wait(soon()).unwrap().is_success());
}

#[test]
fn a_start_whose_deadline_passes_leaves_nothing() {
    let machine = Machine::new();
    let mark = mark(1);
    for _ in 0..10 {
        let spec = shell(&format!("exec sleep {mark}"));
        let started = machine.node.start(&spec, Instant::now() + Duration::from_micros(300));
        let error = started.map(|_| ()).err();
        let is_late = matches!(
            error,
            None | Some(ClusterError::Deadline { .. } | ClusterError::Wire(WireError::Deadline { .. }))
        );
        assert!(is_late, "{error:?}");
    }
    machine.start("exit 0").wait(soon()).unwrap();
    wait_until_gone(&mark);
}

#[test]
fn a_wait_has_a_deadline_and_a_dropped_handle_kills() {
    let machine = Machine::new();
    let mark = mark(2);
    let process = machine.start(&format!("exec sleep {mark}"));
    wait_until_alive(&mark, 1);
    assert_eq!(process.exited().unwrap(), None);
    let error = process.wait(Instant::now() + Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().ends_with("the deadline to wait for the end of rank 2 has passed"), "{error}");
    assert_eq!(alive(&mark).len(), 1);
    drop(process);
    wait_until_gone(&mark);
}

#[test]
fn ports_are_free_and_differ() {
    let machine = Machine::new();
    let ports: BTreeSet<u16> = (0..50).map(|_| machine.node.free_port(soon()).unwrap()).collect();
    assert_eq!(ports.len(), 50);
    let listeners: Vec<_> =
        ports.iter().map(|port| TcpListener::bind(("127.0.0.1", *port)).unwrap()).collect();
    drop(listeners);
}

#[test]
fn stacks_are_requested_with_a_signal_to_the_program() {
    let machine = Machine::new();
    let process = machine.start("trap 'echo the stacks' USR1; echo ready; while :; do sleep 0.02; done");
    wait_for_output(&process, "ready");
    process.request_stacks(soon()).unwrap();
    wait_for_output(&process, "the stacks");
}
