//! Cost of the sandbox: `python3 -I -S -c pass` in each tier and without a sandbox, in turns; medians and their ratios.
//!
//! `cargo bench -p rloom-sandbox --bench cost -- [RLOOM]` with the path of the `rloom` binary to measure; without it the helper is
//! a small binary of this crate.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rloom_core::Program;
use rloom_sandbox::{Choice, Execution, Sandbox};

const TURNS: usize = 60;
const COMMAND: [&str; 5] = ["/usr/bin/python3", "-I", "-S", "-c", "pass"];

fn main() {
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let path = given.unwrap_or_else(|| env!("CARGO_BIN_EXE_sandbox-helper").to_owned());
    let program = Program { path: path.into(), arguments: Vec::new() };
    let choices = [Choice::Namespaces, Choice::Landlock];
    let sandboxes: Vec<Sandbox> =
        choices.into_iter().map(|choice| Sandbox::detect(&program, choice).unwrap()).collect();
    let execution = Execution { command: COMMAND.map(str::to_owned).to_vec(), ..Execution::default() };
    let mut direct = Vec::new();
    let mut jailed = vec![Vec::new(); sandboxes.len()];
    for _ in 0..TURNS {
        direct.push(time(|| {
            let mut command = Command::new(COMMAND[0]);
            command.args(&COMMAND[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            assert!(command.output().unwrap().status.success());
        }));
        for (sandbox, times) in sandboxes.iter().zip(&mut jailed) {
            times.push(time(|| assert!(sandbox.run(&execution).unwrap().ending.is_success())));
        }
    }
    let direct = median(direct);
    println!("direct      {:7.2} ms", direct.as_secs_f64() * 1e3);
    for (sandbox, times) in sandboxes.iter().zip(jailed) {
        let jailed = median(times);
        let ratio = jailed.as_secs_f64() / direct.as_secs_f64();
        println!("{:<11} {:7.2} ms, {ratio:.2} times as long", sandbox.tier(), jailed.as_secs_f64() * 1e3);
    }
}

fn time(run: impl FnOnce()) -> Duration {
    let started = Instant::now();
    run();
    started.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
