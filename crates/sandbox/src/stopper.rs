use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Stops a program that another thread runs.
#[derive(Debug, Clone, Default)]
pub struct Stopper(Arc<Mutex<Connection>>);

/// Connection to the helper, which kills the program when it loses it.
#[derive(Debug, Default)]
enum Connection {
    #[default]
    None,
    Open(UnixStream),
    Stopped,
}

impl Stopper {
    /// Kills the program and all that it has started, now or as soon as it starts.
    pub fn stop(&self) {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Connection::Open(socket) = std::mem::replace(&mut *connection, Connection::Stopped) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no helpers"))]
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), Connection::Stopped)
    }

    /// Stops the program by closing a connection. False if it is stopped already.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no helpers"))]
    pub(crate) fn arm(&self, socket: UnixStream) -> bool {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stopped = matches!(*connection, Connection::Stopped);
        if !is_stopped {
            *connection = Connection::Open(socket);
        }
        !is_stopped
    }
}
