//! Display of a run on a thread of its own.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use rloom_hub::Hub;
use rloom_telemetry::{Event, EventLine, Observer};

use super::ProgressOutput;
use super::downloads::{DownloadEvent, DownloadScreen, Downloads};

/// Events that wait to be shown.
const QUEUE: usize = 4096;
/// Longest wait for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(5);
/// Interval at which a full queue is tried again.
const RETRY: Duration = Duration::from_millis(10);

enum Item {
    Event(Box<EventLine>),
    Download(DownloadEvent),
    Text(String),
    /// Events that were not shown because the queue was full.
    Lost(u64),
    End,
}

/// Shows a run on another thread: a terminal or a pipe that takes no more text does not stop training. Events that do
/// not fit the queue are counted instead.
pub(crate) struct Display {
    items: SyncSender<Item>,
    ended: Receiver<()>,
    downloads: DownloadScreen,
    lost: u64,
}

impl Display {
    /// Starts the thread.
    pub(crate) fn start(mut progress: ProgressOutput) -> std::io::Result<Self> {
        let (items, queue) = sync_channel(QUEUE);
        // Never sent to: it is closed when the thread ends.
        let (running, ended) = channel();
        let screen = progress.download_screen();
        let mut downloads = Downloads::new(screen.clone());
        let show = move || {
            let _running = running;
            for item in queue {
                match item {
                    Item::Event(line) => progress.observe(&line),
                    Item::Download(event) => downloads.show(event, Instant::now()),
                    Item::Text(text) => progress.println(&text),
                    Item::Lost(count) => progress.lost(count),
                    Item::End => break,
                }
            }
        };
        std::thread::Builder::new().name("display".into()).spawn(show)?;
        Ok(Self { items, ended, downloads: screen, lost: 0 })
    }

    /// Returns a function that prints a line from any thread.
    pub(crate) fn printer(&self) -> impl Fn(&str) + Send + use<> {
        let items = self.items.clone();
        move |text: &str| {
            // A display that is blocked shows nothing.
            let _ = items.try_send(Item::Text(text.to_owned()));
        }
    }

    /// Returns the screen of downloads.
    pub(crate) fn downloads(&self) -> DownloadScreen {
        self.downloads.clone()
    }

    /// Waits until everything is shown. Returns false if the output is blocked.
    pub(crate) fn finish(mut self) -> bool {
        let until = Instant::now() + LAST_LINES;
        self.report_lost();
        while self.items.try_send(Item::End).is_err() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(RETRY);
        }
        let left = until.saturating_duration_since(Instant::now());
        self.ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }

    /// Shows the number of lost events as soon as there is room for it.
    fn report_lost(&mut self) {
        if self.lost > 0 && self.items.try_send(Item::Lost(self.lost)).is_ok() {
            self.lost = 0;
        }
    }
}

impl Observer for Display {
    fn observe(&mut self, line: &EventLine) {
        self.report_lost();
        let is_shown = self.items.try_send(Item::Event(Box::new(line.clone()))).is_ok();
        // Progress is out of date soon anyway.
        if !is_shown && !matches!(line.event, Event::Progress { .. }) {
            self.lost += 1;
        }
    }

    fn observe_hub(&self, hub: Hub) -> Hub {
        let items = self.items.clone();
        self.downloads.observe(hub, move |event| {
            // A display that is blocked shows nothing.
            let _ = items.try_send(Item::Download(event));
        })
    }
}
