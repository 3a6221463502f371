//! Progress of downloads: one redrawn line per file on a terminal, lines at its start, end and every ten seconds elsewhere.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rloom_hub::{Hub, HubEvent};

use super::numbers::{self, duration, sanitize};
use crate::output::{Output, YELLOW};
use crate::signals;

/// Interval between lines about one file without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Span of time over which the transfer rate is averaged.
const RATE_SPAN: Duration = Duration::from_secs(5);
/// Redraws per second.
const REDRAWS: u8 = 10;

/// A hub's event that is shown.
#[derive(Debug, Clone)]
pub(crate) enum DownloadEvent {
    Progress { file: String, repository: String, bytes: u64, size: Option<u64> },
    Downloaded { file: String, bytes: u64 },
    Waiting { file: String, repository: String },
    Warning(String),
    Ended,
}

impl DownloadEvent {
    /// `None` for events that are not shown.
    pub(crate) fn of(event: &HubEvent<'_>) -> Option<Self> {
        Some(match event {
            HubEvent::Download { repository, file, bytes, size } => {
                let (file, repository) = (sanitize(file), repository.to_string());
                Self::Progress { file, repository, bytes: *bytes, size: *size }
            }
            HubEvent::Downloaded { file, bytes, .. } => {
                Self::Downloaded { file: sanitize(file), bytes: *bytes }
            }
            HubEvent::Waiting { repository, file } => {
                Self::Waiting { file: sanitize(file), repository: repository.to_string() }
            }
            HubEvent::Cached { commit, error, .. } => {
                Self::Warning(sanitize(&format!("{error}; using commit {commit} from the cache")))
            }
            HubEvent::Ended => Self::Ended,
            _ => return None,
        })
    }
}

/// The screen of the downloads, shared with the thread that handles signals.
#[derive(Debug, Clone)]
pub(crate) struct DownloadScreen {
    output: Output,
    /// Redrawn lines, on a terminal.
    live: Option<MultiProgress>,
    /// True while the hub works, which may wait for the network.
    is_busy: Arc<AtomicBool>,
}

impl DownloadScreen {
    pub(crate) fn new(output: Output) -> Self {
        let target = || ProgressDrawTarget::stderr_with_hz(REDRAWS);
        let live = output.live.then(|| MultiProgress::with_draw_target(target()));
        Self { output, live, is_busy: Arc::default() }
    }

    /// On the screen of progress bars, if there are any.
    pub(crate) fn on(output: Output, live: Option<MultiProgress>) -> Self {
        Self { output, live, is_busy: Arc::default() }
    }

    /// Makes a hub report to `show`, on the thread that downloads.
    pub(crate) fn observe(&self, hub: Hub, show: impl Fn(DownloadEvent) + Send + Sync + 'static) -> Hub {
        let is_busy = Arc::clone(&self.is_busy);
        hub.with_observer(move |event| {
            match event {
                HubEvent::Started => is_busy.store(true, Ordering::Relaxed),
                HubEvent::Ended => is_busy.store(false, Ordering::Relaxed),
                _ => {}
            }
            if let Some(event) = DownloadEvent::of(event) {
                show(event);
            }
        })
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    /// Writes the last line of a process that is interrupted while the hub works.
    pub(crate) fn interrupted(&self) {
        if let Some(live) = &self.live {
            let _ = live.clear();
            live.set_draw_target(ProgressDrawTarget::hidden());
        }
        self.output.info("interrupted; what was downloaded is kept, and the next start continues from there");
    }

    fn println(&self, text: &str) {
        match &self.live {
            Some(live) => drop(live.println(text)),
            None => self.output.info(text),
        }
    }

    fn warn(&self, text: &str) {
        match &self.live {
            Some(live) => {
                drop(live.println(format!("{}: {text}", self.output.paint(YELLOW, "warning"))));
            }
            None => self.output.warn(text),
        }
    }
}

/// The hub that the environment selects, with downloads shown. Ctrl-C during a download ends the process.
pub(crate) fn hub(output: Output) -> Arc<Hub> {
    let screen = DownloadScreen::new(output);
    let downloads = Mutex::new(Downloads::new(screen.clone()));
    let signals = Mutex::new(Some(screen.clone()));
    let show = move |event| {
        // Only from here on, so that commands without downloads keep the default handling.
        if let DownloadEvent::Progress { .. } = event
            && let Some(screen) = signals.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            signals::leave_while_downloading(screen);
        }
        downloads.lock().unwrap_or_else(PoisonError::into_inner).show(event, Instant::now());
    };
    Arc::new(screen.observe(Hub::from_env(), show))
}

/// Shows downloads, of which there is one at a time.
#[derive(Debug)]
pub(crate) struct Downloads {
    screen: DownloadScreen,
    transfer: Option<Transfer>,
}

/// The file that is being downloaded.
#[derive(Debug)]
struct Transfer {
    file: String,
    /// Bytes on disk before.
    from: u64,
    started: Instant,
    /// Time of the last line.
    printed: Instant,
    /// Recent bytes on disk.
    recent: VecDeque<(Instant, u64)>,
    line: Option<ProgressBar>,
}

impl Downloads {
    pub(crate) fn new(screen: DownloadScreen) -> Self {
        Self { screen, transfer: None }
    }

    pub(crate) fn show(&mut self, event: DownloadEvent, now: Instant) {
        match event {
            DownloadEvent::Progress { file, repository, bytes, size } => {
                if self.transfer.as_ref().is_none_or(|transfer| transfer.file != file) {
                    self.start(file, &repository, bytes, size, now);
                }
                self.update(bytes, size, now);
            }
            DownloadEvent::Downloaded { file, bytes } => {
                let Some(transfer) = self.take().filter(|transfer| transfer.file == file) else { return };
                let elapsed = now.saturating_duration_since(transfer.started);
                self.screen.println(&end_line(&file, bytes, bytes - transfer.from.min(bytes), elapsed));
            }
            DownloadEvent::Waiting { file, repository } => {
                let text = format!("waiting for another process that downloads {file} of {repository}");
                self.screen.println(&text);
            }
            DownloadEvent::Warning(text) => self.screen.warn(&text),
            DownloadEvent::Ended => drop(self.take()),
        }
    }

    fn start(&mut self, file: String, repository: &str, from: u64, size: Option<u64>, now: Instant) {
        self.take();
        let line = self.screen.live.as_ref().map(|live| {
            let style = ProgressStyle::with_template("{wide_msg}");
            let line = ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            live.add(line)
        });
        if line.is_none() {
            self.screen.println(&start_line(&file, repository, from, size));
        }
        let recent = VecDeque::from([(now, from)]);
        self.transfer = Some(Transfer { file, from, started: now, printed: now, recent, line });
    }

    fn update(&mut self, bytes: u64, size: Option<u64>, now: Instant) {
        let Some(transfer) = &mut self.transfer else { return };
        transfer.recent.push_back((now, bytes));
        let is_old = |at: Instant| now.saturating_duration_since(at) > RATE_SPAN;
        while transfer.recent.len() > 2 && transfer.recent.get(1).is_some_and(|(at, _)| is_old(*at)) {
            transfer.recent.pop_front();
        }
        let text = progress_line(&transfer.file, bytes, size, rate(&transfer.recent));
        match &transfer.line {
            Some(line) => line.set_message(text),
            None if now.saturating_duration_since(transfer.printed) >= LINE_EVERY => {
                transfer.printed = now;
                self.screen.println(&text);
            }
            None => {}
        }
    }

    /// Ends the transfer and removes its line.
    fn take(&mut self) -> Option<Transfer> {
        let transfer = self.transfer.take()?;
        if let (Some(line), Some(live)) = (&transfer.line, &self.screen.live) {
            line.finish_and_clear();
            live.remove(line);
        }
        Some(transfer)
    }
}

/// Bytes per second; `None` until there is something to measure.
fn rate(recent: &VecDeque<(Instant, u64)>) -> Option<f64> {
    let ((first, from), (last, to)) = (recent.front()?, recent.back()?);
    let seconds = last.saturating_duration_since(*first).as_secs_f64();
    (seconds >= 0.1).then(|| to.saturating_sub(*from) as f64 / seconds)
}

fn start_line(file: &str, repository: &str, from: u64, size: Option<u64>) -> String {
    let size = size.map_or_else(String::new, |size| format!(" ({})", numbers::bytes(size)));
    let from = if from > 0 { format!(", continuing at {}", numbers::bytes(from)) } else { String::new() };
    format!("downloading {file} of {repository}{size}{from}")
}

/// `downloading model.safetensors  1.2 GiB of 3.1 GiB  38 %  24 MiB/s  1 m 20 s left`.
fn progress_line(file: &str, bytes: u64, size: Option<u64>, rate: Option<f64>) -> String {
    let mut parts = vec![format!("downloading {file}")];
    match size {
        Some(size) => {
            parts.push(format!("{} of {}", numbers::bytes(bytes), numbers::bytes(size)));
            parts.push(format!("{} %", percentage(bytes, size)));
        }
        None => parts.push(numbers::bytes(bytes)),
    }
    if let Some(rate) = rate {
        parts.push(format!("{}/s", numbers::bytes(rate as u64)));
        if let Some(left) =
            size.map(|size| size.saturating_sub(bytes)).filter(|left| *left > 0 && rate >= 1.0)
        {
            parts.push(format!("{} left", duration(left as f64 / rate)));
        }
    }
    parts.join("  ")
}

/// Rounded down: 100 % is complete.
fn percentage(bytes: u64, size: u64) -> u64 {
    (u128::from(bytes.min(size)) * 100 / u128::from(size.max(1))) as u64
}

fn end_line(file: &str, bytes: u64, transferred: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    // The rate of a very short transfer says nothing.
    let rate = if seconds >= 1.0 {
        format!(", {}/s", numbers::bytes((transferred as f64 / seconds) as u64))
    } else {
        String::new()
    };
    format!("downloaded {file} ({}) in {}{rate}", numbers::bytes(bytes), duration(seconds))
}

#[cfg(test)]
mod tests {
    use rloom_hub::{HubError, Repository, RepositoryKind, TransferError};

    use super::*;
    use crate::progress::test_screen::Screen;

    /// Downloads on a terminal, without colours.
    fn on_screen() -> (Screen, Downloads) {
        let screen = Screen::default();
        let output = Output::new(&crate::arguments::Global { json: false, no_color: true, quiet: false });
        let live = MultiProgress::with_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        (screen, Downloads::new(DownloadScreen::on(output, Some(live))))
    }

    fn progress(bytes: u64) -> DownloadEvent {
        let (file, repository) = ("model.safetensors".to_owned(), "org/name".to_owned());
        DownloadEvent::Progress { file, repository, bytes, size: Some(3 << 30) }
    }

    #[test]
    fn a_line_shows_size_percentage_rate_and_remaining_time() {
        let line = |bytes, size, rate| progress_line("a.parquet", bytes, size, rate);
        assert_eq!(
            line(3 << 20, Some(12 << 20), Some(1.5e6)),
            "downloading a.parquet  3.0 MiB of 12 MiB  25 %  1.4 MiB/s  6.3 s left"
        );
        assert_eq!(line(0, Some(500), None), "downloading a.parquet  0 B of 500 B  0 %");
        assert_eq!(
            line(999, Some(1000), None),
            "downloading a.parquet  999 B of 1000 B  99 %",
            "not complete"
        );
        assert_eq!(line(7, Some(7), Some(0.0)), "downloading a.parquet  7 B of 7 B  100 %  0 B/s");
        assert_eq!(line(2048, None, Some(100.0)), "downloading a.parquet  2.0 KiB  100 B/s");
        assert_eq!(line(0, Some(0), None), "downloading a.parquet  0 B of 0 B  0 %");
    }

    #[test]
    fn lines_of_a_file_say_where_it_continues_and_how_long_it_took() {
        assert_eq!(start_line("a", "org/name", 0, Some(1000)), "downloading a of org/name (1000 B)");
        assert_eq!(
            start_line("a", "org/name", 1 << 20, Some(4 << 20)),
            "downloading a of org/name (4.0 MiB), continuing at 1.0 MiB"
        );
        assert_eq!(end_line("a", 1000, 1000, Duration::from_millis(20)), "downloaded a (1000 B) in 20 ms");
        assert_eq!(
            end_line("a", 4 << 20, 2 << 20, Duration::from_secs(2)),
            "downloaded a (4.0 MiB) in 2.0 s, 1.0 MiB/s",
            "the rate is that of this transfer"
        );
    }

    #[test]
    fn a_terminal_line_is_redrawn_and_replaced_by_a_summary() {
        let (screen, mut downloads) = on_screen();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        downloads.show(progress(1 << 30), at(0));
        downloads.show(progress(1 << 30), at(4));
        downloads.show(progress((1 << 30) + (40 << 20)), at(8));
        downloads.show(progress((1 << 30) + (240 << 20)), at(12));
        assert_eq!(
            screen.rows(),
            ["downloading model.safetensors  1.2 GiB of 3.0 GiB  41 %  30 MiB/s  1 m 00 s left"],
            "one line, with the rate of the last seconds"
        );
        downloads
            .show(DownloadEvent::Downloaded { file: "model.safetensors".into(), bytes: 3 << 30 }, at(20));
        downloads.show(DownloadEvent::Ended, at(20));
        assert_eq!(screen.rows(), ["downloaded model.safetensors (3.0 GiB) in 20 s, 102 MiB/s"]);
    }

    #[test]
    fn a_failed_download_leaves_no_line() {
        let (screen, mut downloads) = on_screen();
        downloads.show(progress(1 << 20), Instant::now());
        assert_eq!(screen.rows().len(), 1);
        downloads.show(DownloadEvent::Ended, Instant::now());
        assert_eq!(screen.rows(), [""; 0]);
    }

    #[test]
    fn a_cached_commit_is_a_warning() {
        let (screen, mut downloads) = on_screen();
        let repository =
            Repository { kind: RepositoryKind::Model, organisation: "org".into(), name: "name".into() };
        let (id, endpoint) = ("org/name@main".to_owned(), "http://hub".to_owned());
        let error = HubError::Unreachable { id, endpoint, source: TransferError::Status { status: 503 } };
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let event = HubEvent::Cached { repository: &repository, revision: "main", commit, error: &error };
        downloads.show(DownloadEvent::of(&event).unwrap(), Instant::now());
        // The terminal is 100 characters wide.
        let said = screen.rows().concat();
        assert!(said.starts_with("warning: org/name@main: cannot reach http://hub: "), "{said}");
        assert!(said.ends_with(&format!("; using commit {commit} from the cache")), "{said}");
    }
}
