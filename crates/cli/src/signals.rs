//! Signals that stop a run or a download.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

use rloom_run::StopFlag;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::Failure;
use crate::progress::downloads::DownloadScreen;

/// Longest wait for the last line to be written.
const LAST_LINE: Duration = Duration::from_secs(1);

/// Stops a run on signals. The first Ctrl-C finishes the step and saves, the second stops at once, the third exits
/// without waiting. SIGTERM and SIGHUP act as the first Ctrl-C, however often they arrive. A SIGHUP that is ignored
/// (`nohup`) stays ignored. During a download, which happens before the first step, every signal exits at once.
pub(crate) fn stop_on_signals(
    stop: &StopFlag,
    downloads: DownloadScreen,
    print: impl Fn(&str) + Send + 'static,
) -> Result<(), Failure> {
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
            if downloads.is_busy() {
                leave_download(&downloads);
            }
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

/// Calls `act` with the number of each Ctrl-C, SIGTERM or SIGHUP, from 1 on; the third exits. Signals that are ignored stay
/// ignored.
pub(crate) fn count_signals(act: impl Fn(u32) + Send + 'static) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::failed_text(format_args!("cannot listen for signals: {error}"));
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(wanted).map_err(failed)?;
    let listen = move || {
        for (number, _) in (1..).zip(signals.forever()) {
            if number > 2 {
                leave();
            }
            act(number);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}

/// Ends this process by SIGTERM when the one that started it ends. Ctrl-C does not reach it any more.
pub(crate) fn end_with_parent() {
    // Both only fail in sandboxes, where the run ends by itself.
    let _ = rustix::process::setpgid(None, None);
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
}

/// Sets `stop` at the first Ctrl-C, SIGTERM or SIGHUP; the next one exits. Signals that are ignored stay ignored.
pub(crate) fn set_on_signals(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::failed_text(format_args!("cannot listen for signals: {error}"));
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)) {
        let code = i32::from(crate::failure::INTERRUPTED);
        // Before the flag is set: the first signal passes.
        flag::register_conditional_shutdown(signal, code, Arc::clone(stop)).map_err(failed)?;
        flag::register(signal, Arc::clone(stop)).map_err(failed)?;
    }
    Ok(())
}

/// Exits on Ctrl-C during a download, with a message; at other times Ctrl-C acts as without this function.
pub(crate) fn leave_while_downloading(downloads: DownloadScreen) {
    if is_ignored(SIGINT) {
        return;
    }
    let Ok(mut signals) = Signals::new([SIGINT]) else { return };
    let listen = move || {
        for signal in signals.forever() {
            if downloads.is_busy() {
                leave_download(&downloads);
            }
            let _ = emulate_default_handler(signal);
        }
    };
    // Without the thread, Ctrl-C has no effect until the download ends.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(listen);
}

/// Says that the download continues at the next start, and exits; also if the output is blocked.
fn leave_download(downloads: &DownloadScreen) {
    let (done, written) = channel();
    let downloads = downloads.clone();
    std::thread::spawn(move || {
        downloads.interrupted();
        let _ = done.send(());
    });
    let _ = written.recv_timeout(LAST_LINE);
    leave();
}

/// True if this process ignores a signal. Only Linux tells; elsewhere the answer is no.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

#[expect(clippy::exit, reason = "files are consistent at every instant")]
fn leave() {
    std::process::exit(i32::from(crate::failure::INTERRUPTED));
}
