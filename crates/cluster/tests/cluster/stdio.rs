//! Standard input and output of programs that are relayed to the controller.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rloom_cluster::{ClusterError, Process, ProcessSpec};

use crate::{Machine, mark, shell, soon, wait_until_alive, wait_until_gone};

/// The guard of these tests, which is a test program, writes to its standard output before the program has it.
const READY: &str = "ready\n";

/// A shell script and its stream, once it has written [`READY`].
fn relayed(machine: &Machine, script: &str) -> (Process, BufReader<TcpStream>) {
    let spec = shell(&format!("echo ready; {script}"));
    let (process, stream) = machine.node.start_relayed(&spec, soon()).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    stream.set_write_timeout(Some(Duration::from_mins(2))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != READY {
        line.clear();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream ends before the program is ready");
    }
    (process, reader)
}

#[test]
fn lines_pass_in_both_directions_and_ends_are_seen() {
    let machine = Machine::new();
    let (process, mut stream) = relayed(
        &machine,
        "while read -r line; do echo \"got $line\"; done; echo last; echo words >&2; exit 3",
    );
    let mut line = String::new();
    for number in 0..100 {
        stream.get_ref().write_all(format!("{number}\n").as_bytes()).unwrap();
        line.clear();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, format!("got {number}\n"));
    }
    // The program's input ends, and it writes the rest.
    stream.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "last\n");
    let exit = process.wait(soon()).unwrap();
    assert_eq!((exit.code, exit.output.trim()), (Some(3), "words"));
}

#[test]
fn many_bytes_pass_unchanged() {
    let machine = Machine::new();
    let (_process, mut stream) = relayed(&machine, "exec cat");
    let sent: Vec<u8> =
        (0..4_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut sending, bytes) = (stream.get_ref().try_clone().unwrap(), sent.clone());
    let sender = std::thread::spawn(move || {
        sending.write_all(&bytes).unwrap();
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    sender.join().unwrap();
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
}

/// The program ends with its stream's daemon, and the controller sees the end of the stream.
#[test]
fn the_loss_of_the_daemon_ends_program_and_stream() {
    let mut machine = Machine::new();
    let mark = mark(71);
    let (process, mut stream) = relayed(&machine, &format!("sleep {mark} & cat; sleep {mark}"));
    wait_until_alive(&mark, 1);
    assert!(process.resident_memory(soon()).is_none_or(|bytes| bytes > 0));
    machine.daemon.0.kill().unwrap();
    let mut rest = Vec::new();
    // An end or an error, but no wait.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert!(machine.node.wait_lost(soon()));
    assert!(matches!(process.exited(), Err(ClusterError::NodeLost { .. })));
    wait_until_gone(&mark);
}

#[test]
fn a_program_that_cannot_be_started_has_no_stream() {
    let machine = Machine::new();
    let spec = ProcessSpec { program: "/no/such/program".to_owned(), ..shell("") };
    let error = machine.node.start_relayed(&spec, soon()).unwrap_err().to_string();
    assert!(error.contains("/no/such/program"), "{error}");
}
