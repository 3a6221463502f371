//! The server that agents call, with a thread and a runtime of its own.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rloom_env::AgentEnvironment;
use rloom_function::Guard;
use rloom_sandbox::Service;
use rloom_serve::{
    ApiKey, OpenSession, ServeSettings, ServedModel, Server, SessionSettings, Sessions, Stopper, listen,
};
use serde_json::json;

use crate::AgentError;
use crate::endpoint::{LEASE_PATH, LeaseEndpoint};
use crate::jail::Jail;
use crate::lease::Offers;
use crate::relay::{RelaySocket, relay};

/// Environment variable with the key of agents that lease episodes.
pub const LEASE_KEY: &str = "RLOOM_LEASE_KEY";
/// Name of the file with the address and the key.
const LEASE_FILE: &str = "lease.json";
/// Address of the server: this machine alone.
const HOST: &str = "127.0.0.1";
/// Sessions that may be open beyond one per agent: stage and evaluation have agents each, and those that end overlap.
const EXTRA_SESSIONS: usize = 3;

/// A server for agents. It stops, and the sessions end, when this is dropped.
pub struct AgentServer {
    address: SocketAddr,
    sessions: Sessions,
    offers: Arc<Offers>,
    guard: Arc<Mutex<Guard>>,
    jail: Option<Jail>,
    /// The socket for agents in the sandbox.
    _relay: Option<RelaySocket>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    /// The file with the key of leases, until it is removed.
    lease_file: Option<PathBuf>,
}

impl fmt::Debug for AgentServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl AgentServer {
    /// Starts a server for a model. With leases, its address and key are in a file of `folder` that only this user can read, until
    /// the server stops; a key in the environment variable [`LEASE_KEY`] is written to no file.
    pub fn start(
        model: ServedModel,
        settings: &AgentEnvironment,
        folder: Option<&Path>,
    ) -> Result<Self, AgentError> {
        let failed = |error: std::io::Error| AgentError::Server { message: error.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = runtime.block_on(listen(HOST, settings.port.unwrap_or(0)))?;
        let sessions = Sessions::new(Arc::new(model), session_settings(settings));
        let (offers, mut lease_file) = (Arc::<Offers>::default(), None);
        let address = listener.local_addr().map_err(failed)?;
        let requests = settings.concurrency as usize * 4;
        let limits =
            ServeSettings { max_requests: requests, max_connections: requests, ..ServeSettings::default() };
        let mut server = Server::for_sessions(listener, sessions.clone(), limits, |_| {});
        if settings.lease {
            let key = lease_key()?;
            if std::env::var(LEASE_KEY).is_err() {
                let folder = folder.ok_or(AgentError::NoLeaseKey { variable: LEASE_KEY })?;
                lease_file = Some(write_lease_file(folder, address, Some(&key))?);
            } else if let Some(folder) = folder {
                lease_file = Some(write_lease_file(folder, address, None)?);
            }
            server = server.with_extension(Arc::new(LeaseEndpoint::new(Arc::clone(&offers), key)));
        }
        let (mut jail, mut socket) = (None, None);
        if let Some(settings) = &settings.sandbox {
            let failed = |error: std::io::Error| AgentError::Relay { message: error.to_string() };
            let guard = runtime.enter();
            let (relayed, listener) = RelaySocket::listen().map_err(failed)?;
            let service = Service { port: address.port(), socket: relayed.path().to_owned() };
            jail = Some(Jail::new(settings, service)?);
            socket = Some(relayed);
            drop(guard);
            runtime.spawn(relay(listener, address));
        }
        let stopper = server.stopper();
        let serve = move || {
            runtime.block_on(server.run());
        };
        let thread = std::thread::Builder::new().name("agents".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Self {
            address,
            sessions,
            offers,
            guard: Arc::new(Mutex::new(Guard::start())),
            jail,
            _relay: socket,
            stopper,
            thread: Some(thread),
            lease_file,
        })
    }

    /// Address on this machine.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(crate) fn offers(&self) -> &Offers {
        &self.offers
    }

    /// Kills the agents when this program dies.
    pub(crate) fn guard(&self) -> &Arc<Mutex<Guard>> {
        &self.guard
    }

    /// The sandbox of the agents, if they have one.
    pub(crate) fn jail(&self) -> Option<&Jail> {
        self.jail.as_ref()
    }

    /// The URL of a session. Secret.
    pub(crate) fn url(&self, session: &OpenSession) -> String {
        format!("http://{}{}", self.address, session.path())
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(path) = &self.lease_file {
            let _ = fs::remove_file(path);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn session_settings(settings: &AgentEnvironment) -> SessionSettings {
    let defaults = SessionSettings::default();
    SessionSettings {
        max_sessions: settings.concurrency as usize * EXTRA_SESSIONS,
        // The end of a program shows when a started agent is gone, that of its calls when one with a lease is.
        idle: if settings.lease { settings.lease_time() } else { settings.timeout() },
        total: settings.timeout(),
        max_calls: settings.max_calls.into(),
        max_tokens: settings.max_tokens.unwrap_or(u64::MAX),
        // The runner knows whether the reward of the recipe needs it.
        needs_reward: false,
        ..defaults
    }
}

/// The key of the environment variable, or a random one.
fn lease_key() -> Result<ApiKey, AgentError> {
    Ok(match std::env::var(LEASE_KEY) {
        Ok(key) => ApiKey::new(key)?,
        Err(_) => ApiKey::random()?,
    })
}

/// Writes the address, and a random key, for agents of this user.
fn write_lease_file(folder: &Path, address: SocketAddr, key: Option<&ApiKey>) -> Result<PathBuf, AgentError> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let path = folder.join(LEASE_FILE);
    let url = format!("http://{address}{LEASE_PATH}");
    let content = json!({ "url": url, "key": key.map(ApiKey::reveal) });
    let write = || {
        fs::create_dir_all(folder)?;
        // One that an attempt has left behind when it was killed.
        let _ = fs::remove_file(&path);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        writeln!(file, "{content}")
    };
    write().map_err(|error| AgentError::LeaseFile { path: path.clone(), message: error.to_string() })?;
    Ok(path)
}
