//! Processes that a host starts elsewhere: here, programs with a TCP connection as input and output.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_function::{
    FunctionError, Host, Hosted, HostedCommand, HostedProcess, Judge, Limits, Peer, Pool, Role,
};

use crate::support::{LONG, judge_one, limits, script};

const ONE: Role = Role::Reward { group: false };

/// Starts programs on this machine, and counts them.
#[derive(Debug, Default)]
struct Near {
    started: AtomicUsize,
    commands: Mutex<Vec<HostedCommand>>,
}

#[derive(Debug)]
struct NearProcess(Mutex<Child>);

impl Host for Near {
    fn start(&self, command: &HostedCommand, _: &dyn Fn() -> bool) -> Result<Hosted, String> {
        self.started.fetch_add(1, Ordering::SeqCst);
        self.commands.lock().unwrap().push(command.clone());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (of_program, _) = listener.accept().unwrap();
        let output = OwnedFd::from(of_program.try_clone().unwrap());
        let mut program = Command::new(&command.program);
        program
            .args(&command.arguments)
            .stdin(OwnedFd::from(of_program))
            .stdout(output)
            .stderr(Stdio::null());
        let child = program.spawn().map_err(|error| format!("on near: {error}"))?;
        let process = Arc::new(NearProcess(Mutex::new(child)));
        Ok(Hosted { process, stream, machine: "near".to_owned() })
    }
}

impl HostedProcess for NearProcess {
    fn kill(&self) {
        let mut child = self.0.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }

    fn ended(&self) -> Option<String> {
        self.0.lock().unwrap().try_wait().unwrap().map(|status| format!("ended with {status}"))
    }

    fn stderr(&self) -> String {
        let lines: Vec<String> = (0..50).map(|line| format!("line {line}")).collect();
        lines.join("\n")
    }

    fn resident_memory(&self) -> Option<u64> {
        Some(3 << 20)
    }
}

fn hosted(answer: &str, limits: Limits) -> (Judge, Arc<Near>) {
    let near = Arc::new(Near::default());
    let judge = Judge::from(Pool::new(Peer::command(&script(answer), ONE), limits));
    judge.place(Arc::clone(&near) as Arc<dyn Host>);
    (judge, near)
}

const GOOD: &str = r#"echo '{"id":'$id',"verdicts":[1]}'"#;

#[test]
fn calls_reach_processes_of_a_host() {
    let (judge, near) = hosted(GOOD, limits(2, LONG));
    // All of them are checked: each may be on a machine of its own.
    judge.check().unwrap();
    assert_eq!(near.started.load(Ordering::SeqCst), 2);
    for _ in 0..20 {
        assert_eq!(judge_one(&judge, "x"), Ok(Some(1.0)));
    }
    let mut workers: Vec<usize> =
        near.commands.lock().unwrap().iter().map(|command| command.worker).collect();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1]);
}

#[test]
fn failures_name_the_machine_and_quote_the_end_of_stderr() {
    let (crashing, near) = hosted("exit 3", limits(1, LONG));
    let Err(FunctionError::Ended { function, status, stderr }) = judge_one(&crashing, "x") else { panic!() };
    assert!(function.ends_with(" on near") && status.contains('3'), "{function}: {status}");
    assert!(stderr.starts_with("line 30\n") && stderr.ends_with("line 49"), "{stderr}");
    assert_eq!(near.started.load(Ordering::SeqCst), 1, "the call is not repeated");
    let (hanging, _) = hosted("read -r more", limits(1, Duration::from_secs(1)));
    let Err(FunctionError::TimedOut { function, .. }) = judge_one(&hanging, "x") else { panic!() };
    assert!(function.ends_with(" on near"), "{function}");
    let missing = Pool::new(Peer::command(&["/no/such/program".to_owned()], ONE), limits(1, LONG));
    missing.place(Arc::new(Near::default()));
    let error = missing.check().unwrap_err().to_string();
    assert!(error.contains("/no/such/program") && error.contains("on near"), "{error}");
}

#[test]
fn processes_of_a_host_are_replaced_after_their_calls_and_for_their_memory() {
    for limits in [
        Limits { recycle: Some(2), ..limits(1, LONG) },
        // A process holds 3 MiB.
        Limits { memory: Some(1 << 20), ..limits(1, LONG) },
    ] {
        let (judge, near) = hosted(GOOD, limits);
        for _ in 0..6 {
            assert_eq!(judge_one(&judge, "x"), Ok(Some(1.0)));
        }
        let expected = if limits.recycle.is_some() { 3 } else { 6 };
        assert_eq!(near.started.load(Ordering::SeqCst), expected);
    }
}

/// Relative files among the arguments are found in the working directory of the run.
#[test]
fn programs_with_relative_files_have_a_working_directory() {
    let directory = |arguments: &[&str]| {
        let near = Arc::new(Near::default());
        let command: Vec<String> =
            ["sh", "-c", &script(GOOD)[2]].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
        let judge = Judge::from(Pool::new(Peer::command(&command, ONE), limits(1, LONG)));
        judge.place(Arc::clone(&near) as Arc<dyn Host>);
        judge.check().unwrap();
        let command = near.commands.lock().unwrap().remove(0);
        command.directory
    };
    assert_eq!(directory(&["--option"]), None);
    assert_eq!(directory(&["Cargo.toml"]), Some(std::env::current_dir().unwrap()));
}
