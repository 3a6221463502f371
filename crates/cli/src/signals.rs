//! Signals that stop a run.

use rloom_run::StopFlag;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// Stops a run on signals. The first Ctrl-C finishes the step and saves, the second stops at once, the third exits
/// without waiting. SIGTERM and SIGHUP act as the first Ctrl-C, however often they arrive. A SIGHUP that is ignored
/// (`nohup`) stays ignored.
pub(crate) fn stop_on_signals(stop: &StopFlag, print: impl Fn(&str) + Send + 'static) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::failed_text(format_args!("cannot listen for signals: {error}"));
    let mut wanted = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted).map_err(failed)?;
    let stop = stop.clone();
    let listen = move || {
        for signal in signals.forever() {
            if signal != SIGINT && stop.after_this_step() {
                continue;
            }
            let name = if signal == SIGINT { "interrupted" } else { "asked to terminate" };
            match stop.request() {
                1 => print(&format!(
                    "{name}: finishing the current step, then saving (press Ctrl-C again to stop at once)"
                )),
                2 => print("stopping at once"),
                _ => leave(),
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}

/// True if this process ignores a signal. Only Linux tells; elsewhere the answer is no.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

#[expect(clippy::exit, reason = "the user asked three times; files are consistent at every instant")]
fn leave() {
    std::process::exit(i32::from(crate::failure::INTERRUPTED));
}
