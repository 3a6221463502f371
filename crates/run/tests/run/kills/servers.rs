//! Outside servers that are killed.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stand_in::{Protocol, StandIn};

/// Two servers, of which one after the other is killed and started again at its port.
pub(super) struct Servers {
    pub(super) urls: String,
    stop: mpsc::Sender<()>,
    killer: JoinHandle<u64>,
}

impl Servers {
    pub(super) fn start(mut draw: impl FnMut(u64) -> u64 + Send + 'static) -> Self {
        let mut servers = [(); 2].map(|()| Some(StandIn::start()));
        let urls = servers.iter().flatten().map(|server| format!("'{}'", server.url));
        let urls = urls.collect::<Vec<_>>().join(",");
        let (stop, stopped) = mpsc::channel();
        let killer = std::thread::spawn(move || {
            for kills in 0.. {
                if stopped.recv_timeout(Duration::from_millis(100 + draw(400)))
                    != Err(RecvTimeoutError::Timeout)
                {
                    return kills;
                }
                let victim = &mut servers[draw(2) as usize];
                let port = victim.take().unwrap().port();
                std::thread::sleep(Duration::from_millis(draw(200)));
                *victim = Some(StandIn::at(port, Protocol::Vllm));
            }
            0
        });
        Self { urls, stop, killer }
    }

    /// Ends them. Returns the number of kills.
    pub(super) fn end(self) -> u64 {
        drop(self.stop);
        self.killer.join().unwrap()
    }
}
