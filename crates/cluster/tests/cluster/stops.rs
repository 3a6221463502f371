//! Stops of processes and of what they started.

use std::time::Duration;

use crate::{Machine, mark, soon, wait_for_output, wait_until_alive, wait_until_gone};

const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn a_stop_lets_the_program_end_by_itself() {
    let machine = Machine::new();
    let process = machine.start("trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.02; done");
    wait_for_output(&process, "ready");
    let exit = process.stop(MINUTE, soon()).unwrap();
    assert_eq!((exit.code, exit.stopped), (Some(5), true));
    assert!(exit.output.ends_with("saved\n"), "{}", exit.output);
}

#[test]
fn a_program_that_ignores_the_stop_is_killed() {
    let machine = Machine::new();
    let process = machine.start("trap '' TERM; echo ready; while :; do sleep 0.02; done");
    wait_for_output(&process, "ready");
    let exit = process.stop(Duration::from_millis(200), soon()).unwrap();
    assert_eq!((exit.signal, exit.stopped, exit.out_of_memory), (Some(9), true, false));
}

#[test]
fn a_stopped_program_ends_as_well() {
    let machine = Machine::new();
    let mark = mark(10);
    let process = machine.start(&format!("kill -STOP $$; exec sleep {mark}"));
    let exit = process.stop(MINUTE, soon()).unwrap();
    assert_eq!(exit.signal, Some(15));
}

#[test]
fn without_grace_a_program_is_killed_at_once() {
    let machine = Machine::new();
    let process = machine.start("trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done");
    wait_for_output(&process, "ready");
    assert_eq!(process.stop(Duration::ZERO, soon()).unwrap().signal, Some(9));
}

#[test]
fn a_stop_reaches_the_whole_group() {
    let machine = Machine::new();
    let mark = mark(11);
    let child = format!("(trap '' TERM; sleep {mark}; sleep {mark}) &");
    let process = machine.start(&format!("{child} echo ready; exec sleep {mark}"));
    wait_for_output(&process, "ready");
    wait_until_alive(&mark, 2);
    let exit = process.stop(MINUTE, soon()).unwrap();
    assert_eq!(exit.signal, Some(15));
    wait_until_gone(&mark);
}

#[test]
fn children_do_not_outlive_the_program() {
    let machine = Machine::new();
    let mark = mark(12);
    let process =
        machine.start(&format!("(trap '' TERM HUP; sleep {mark}; sleep {mark}) & echo ready; exit 4"));
    assert_eq!(process.wait(soon()).unwrap().code, Some(4));
    wait_until_gone(&mark);
}

#[cfg(target_os = "linux")]
#[test]
fn children_that_left_the_group_do_not_outlive_the_program() {
    let machine = Machine::new();
    let mark = mark(13);
    let script =
        format!("setsid -f sleep {mark}; setsid sh -c 'sleep {mark} & sleep {mark}' & echo ready; wait");
    let process = machine.start(&script);
    wait_for_output(&process, "ready");
    wait_until_alive(&mark, 4);
    process.stop(MINUTE, soon()).unwrap();
    wait_until_gone(&mark);
}
