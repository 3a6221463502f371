//! A Unix socket of the server, for agents in namespaces with a network of their own.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpStream, UnixListener};
use tokio::time::{Duration, sleep};

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket in a folder, which is removed when this is dropped. All users can connect to it, as to the server itself: a
/// sandbox has a user of its own. Sessions are protected by their tokens.
#[derive(Debug)]
pub(crate) struct RelaySocket {
    folder: PathBuf,
    path: PathBuf,
}

impl RelaySocket {
    /// Listens. Must be called in a runtime.
    pub(crate) fn listen() -> io::Result<(Self, UnixListener)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let folder = loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("rloom-agents-{}-{number}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            match fs::create_dir(&folder) {
                Ok(()) => break folder,
                // Left by a process that had this number before.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let socket = Self { path: folder.join("socket"), folder };
        fs::set_permissions(&socket.folder, fs::Permissions::from_mode(0o711))?;
        let listener = UnixListener::bind(&socket.path)?;
        fs::set_permissions(&socket.path, fs::Permissions::from_mode(0o666))?;
        Ok((socket, listener))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RelaySocket {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Passes connections on to the server, until it is dropped.
pub(crate) async fn relay(listener: UnixListener, server: SocketAddr) {
    loop {
        let Ok((mut agent, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        tokio::spawn(async move {
            if let Ok(mut stream) = TcpStream::connect(server).await {
                let _ = stream.set_nodelay(true);
                // An error is one of this connection alone.
                let _ = copy_bidirectional(&mut agent, &mut stream).await;
            }
        });
    }
}
