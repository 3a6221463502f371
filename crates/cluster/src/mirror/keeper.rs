//! The daemon's side: copies of versions, made one at a time in threads of their own.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rloom_wire::{Identity, Listener, Options, Token};

use super::copy::{copy_folder, create};
use super::failure::{Limits, MirrorFailure};
use super::manifest::{has_plain_names, list, total};
use super::message::{MirrorCommand, MirrorCopy, MirrorEvent, MirrorOrder, MirrorSource, is_version};
use super::store::{Store, default_places, remove_left_overs};
use super::version::{Part, Version};
use super::{fetch, serve, tensors};

/// Role of a daemon at another one.
pub(super) const ROLE: &str = "mirror";
/// Largest frame between daemons, and received frames that wait there.
const FRAME: u64 = 64 << 20;
const QUEUE: u64 = 32 << 20;
/// Attempts to copy a folder whose copy is damaged.
const ATTEMPTS: u32 = 2;
/// Longest wait for a copy to end with the daemon.
const ENDING: Duration = Duration::from_secs(5);

/// The type behind [`Create`](super::copy::Create).
trait Creating: Fn(&Path) -> io::Result<Box<dyn Write>> + Send + Sync {}

impl<F: Fn(&Path) -> io::Result<Box<dyn Write>> + Send + Sync> Creating for F {}

/// The copies of a daemon.
pub(crate) struct Keeper {
    token: Token,
    pub(super) options: Options,
    index: u32,
    /// Address of the route to the controller.
    address: IpAddr,
    pub(super) is_ending: AtomicBool,
    pub(super) store: Store,
    /// Creates the files of copies.
    create: Box<dyn Creating>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    versions: Vec<Arc<Version>>,
    is_copying: bool,
    /// Where other daemons are served.
    serving: Option<SocketAddr>,
}

impl Keeper {
    /// The copies of a daemon that reaches the controller from `address`. Removes those of dead daemons.
    pub(crate) fn new(token: Token, options: Options, index: u32, address: IpAddr) -> Arc<Self> {
        let options = Options { frame_bytes: FRAME, queue_bytes: QUEUE, ..options };
        let clean = || default_places().iter().for_each(|place| remove_left_overs(place));
        // Not started: the first copy does the same.
        let _ = thread::Builder::new().name("left-overs".to_owned()).spawn(clean);
        Arc::new(Self {
            token,
            options,
            index,
            address,
            is_ending: AtomicBool::new(false),
            store: Store::default(),
            create: Box::new(create),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Follows a command in a thread of its own.
    pub(crate) fn follow(
        self: &Arc<Self>,
        command: MirrorCommand,
        report: impl Fn(MirrorEvent) + Send + Sync + 'static,
    ) {
        let (this, report) = (Arc::clone(self), Arc::new(report));
        let reporting = Arc::clone(&report);
        let work = move || {
            let done = match command {
                MirrorCommand::Copy(order) => this.copy(&order).map(MirrorEvent::Copied),
                MirrorCommand::Forget { keep } => Ok(MirrorEvent::Kept { versions: this.keep(&keep) }),
                MirrorCommand::Serve { address } => {
                    this.serve(address).map(|address| MirrorEvent::Serving { address })
                }
            };
            report(done.unwrap_or_else(MirrorEvent::Failed));
        };
        if let Err(error) = thread::Builder::new().name("mirror".to_owned()).spawn(work) {
            reporting(MirrorEvent::Failed(MirrorFailure::other(error)));
        }
    }

    /// Ends copying in progress, and removes all copies.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + ENDING;
        let mut state = self.state();
        while state.is_copying && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.versions.clear();
        drop(state);
        self.store.clear();
    }

    /// The version called `name`.
    pub(super) fn version(&self, name: &str) -> Option<Arc<Version>> {
        self.state().versions.iter().find(|version| version.name == name).cloned()
    }

    /// Identity and token of this daemon at another one.
    pub(super) fn identity(&self) -> (Identity, &Token) {
        (Identity::new(ROLE, self.index, 0), &self.token)
    }

    /// Drops all versions but those in `keep`, and returns the names of what is left.
    pub(super) fn keep(&self, keep: &[String]) -> Vec<String> {
        let mut state = self.state();
        let (kept, dropped) = std::mem::take(&mut state.versions)
            .into_iter()
            .partition::<Vec<_>, _>(|version| keep.contains(&version.name));
        state.versions = kept;
        let names = state.versions.iter().map(|version| version.name.clone()).collect();
        drop(state);
        // Files are removed without the lock.
        drop(dropped);
        names
    }

    /// Listens for other daemons, unless this one does already.
    pub(super) fn serve(self: &Arc<Self>, address: Option<IpAddr>) -> Result<SocketAddr, MirrorFailure> {
        let mut state = self.state();
        if let Some(address) = state.serving {
            return Ok(address);
        }
        let address = SocketAddr::new(address.unwrap_or(self.address), 0);
        let (identity, token) = self.identity();
        let listener = Listener::bind(&address.to_string(), token.clone(), identity, self.options);
        let listener = listener.map_err(MirrorFailure::other)?;
        let bound = listener.address();
        let this = Arc::clone(self);
        let accept = move || serve::accept(&this, &listener);
        thread::Builder::new()
            .name("mirror listener".to_owned())
            .spawn(accept)
            .map_err(MirrorFailure::other)?;
        state.serving = Some(bound);
        Ok(bound)
    }

    /// Makes a copy, unless there is one.
    pub(super) fn copy(&self, order: &MirrorOrder) -> Result<MirrorCopy, MirrorFailure> {
        if !is_version(&order.version) || !order.files.as_deref().is_none_or(has_plain_names) {
            return Err(MirrorFailure::other("the version or a file has an impossible name"));
        }
        let deadline = Instant::now() + Duration::from_millis(order.timeout_ms);
        let limits = Limits { deadline, is_ending: &self.is_ending };
        let _turn = self.turn(limits)?;
        let held = self.version(&order.version);
        let is_known = |version: &Arc<Version>| order.files.as_ref().is_none_or(|own| *own == version.files);
        if let Some(version) = held.filter(is_known) {
            return Ok(MirrorCopy {
                path: version.path().to_owned(),
                files: version.files.clone(),
                from: MirrorSource::Held,
                received: 0,
                failed: Vec::new(),
            });
        }
        self.keep(&order.keep.iter().filter(|name| **name != order.version).cloned().collect::<Vec<_>>());
        let mut failed = Vec::new();
        let (version, from, received) = match self.ask_parents(order, limits, &mut failed)? {
            Some(fetched) => fetched,
            None => self.read_share(order, limits)?,
        };
        let copy = MirrorCopy {
            path: version.path().to_owned(),
            files: version.files.clone(),
            from,
            received,
            failed,
        };
        let mut state = self.state();
        if self.is_ending.load(Ordering::Relaxed) {
            return Err(MirrorFailure::Ending);
        }
        state.versions.push(Arc::new(version));
        Ok(copy)
    }

    /// Asks the parents in turn. `None` if none of them gives the version.
    fn ask_parents(
        &self,
        order: &MirrorOrder,
        limits: Limits<'_>,
        failed: &mut Vec<(SocketAddr, String)>,
    ) -> Result<Option<(Version, MirrorSource, u64)>, MirrorFailure> {
        let Some(files) = &order.files else { return Ok(None) };
        for &parent in &order.parents {
            let limits = limits.until(Instant::now() + Duration::from_millis(order.parent_ms));
            let base = order.base.as_deref().and_then(|base| self.version(base));
            let mut fetched = fetch::fetch(self, parent, order, files, base.as_ref(), limits);
            if base.is_some() && matches!(fetched, Err(MirrorFailure::Damaged { .. })) {
                // The base may be at fault.
                fetched = fetch::fetch(self, parent, order, files, None, limits);
            }
            match fetched {
                Ok(fetched) => return Ok(Some(fetched)),
                Err(failure @ (MirrorFailure::NoRoom { .. } | MirrorFailure::Ending)) => return Err(failure),
                Err(failure) => failed.push((parent, failure.to_string())),
            }
        }
        Ok(None)
    }

    /// Copies the folder on the share. A damaged copy is made once more.
    fn read_share(
        &self,
        order: &MirrorOrder,
        limits: Limits<'_>,
    ) -> Result<(Version, MirrorSource, u64), MirrorFailure> {
        for attempt in 1.. {
            match self.read_share_once(order, limits) {
                Err(MirrorFailure::Damaged { .. }) if attempt < ATTEMPTS => {}
                Err(failure) => return Err(failure),
                Ok(version) => {
                    let received = total(&version.files);
                    return Ok((version, MirrorSource::Share, received));
                }
            }
        }
        Err(MirrorFailure::Late)
    }

    fn read_share_once(&self, order: &MirrorOrder, limits: Limits<'_>) -> Result<Version, MirrorFailure> {
        let source = &order.source;
        let listed = list(source).map_err(|error| MirrorFailure::io("read", source, &error))?;
        let need = listed.iter().fold(0u64, |sum, (.., bytes)| sum.saturating_add(*bytes));
        let part = self.part(order, need)?;
        let place = part.path().to_owned();
        let files = copy_folder(source, part.path(), limits, &*self.create);
        let files = files.map_err(|failure| needing(failure, need, &place))?;
        if order.files.as_ref().is_some_and(|expected| *expected != files) {
            let problem = "its files are not those that another node has copied";
            return Err(MirrorFailure::damaged(source, problem));
        }
        let checked = tensors::check(part.path(), &files, order.digest, limits);
        checked.map_err(|failure| match failure {
            // The copy is as good as the source.
            MirrorFailure::Damaged { path, problem } => {
                let name = path.strip_prefix(&place).unwrap_or(&path);
                MirrorFailure::Damaged { path: source.join(name), problem }
            }
            failure => failure,
        })?;
        Ok(part.complete(&order.version, files))
    }

    /// An empty folder for a version of `need` bytes.
    pub(super) fn part(&self, order: &MirrorOrder, need: u64) -> Result<Part, MirrorFailure> {
        let default = if order.places.is_empty() { default_places() } else { Vec::new() };
        let places: &[PathBuf] = if order.places.is_empty() { &default } else { &order.places };
        let home = self.store.home(places, need)?;
        Part::new(home, &order.version)
    }

    /// Waits until no other copy is made.
    fn turn(&self, limits: Limits<'_>) -> Result<Turn<'_>, MirrorFailure> {
        let mut state = self.state();
        while state.is_copying {
            limits.check()?;
            let left = limits.deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        limits.check()?;
        state.is_copying = true;
        Ok(Turn(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file system that became full, with what was needed there.
pub(super) fn needing(failure: MirrorFailure, need: u64, place: &Path) -> MirrorFailure {
    match failure {
        MirrorFailure::NoRoom { need: 0, .. } => {
            let place = place.parent().and_then(|home| home.parent()).unwrap_or(place);
            MirrorFailure::NoRoom {
                need,
                found: vec![(place.to_owned(), super::store::room(place).unwrap_or(0))],
            }
        }
        failure => failure,
    }
}

/// The right to make a copy.
struct Turn<'a>(&'a Keeper);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().is_copying = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn keeper(create: impl Creating + 'static) -> Keeper {
        let keeper = Keeper::new(Token::random().unwrap(), Options::default(), 0, Ipv4Addr::LOCALHOST.into());
        Keeper { create: Box::new(create), ..Arc::into_inner(keeper).unwrap() }
    }

    /// Copies a folder with one file, to which a byte is added during each of the first `changes` attempts.
    fn copy_while_it_changes(changes: u32) -> (Result<MirrorCopy, MirrorFailure>, u32) {
        let (share, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let source = share.path().join("config.json");
        fs::write(&source, "{}").unwrap();
        let attempts = Arc::new(AtomicU32::new(0));
        let made = Arc::clone(&attempts);
        let keeper = keeper(move |path: &Path| -> io::Result<Box<dyn Write>> {
            if made.fetch_add(1, Ordering::Relaxed) < changes {
                fs::OpenOptions::new().append(true).open(&source)?.write_all(b" ")?;
            }
            Ok(Box::new(File::create(path)?))
        });
        let order = MirrorOrder {
            version: "v1".to_owned(),
            source: share.path().to_owned(),
            places: vec![place.path().to_owned()],
            timeout_ms: 60_000,
            ..MirrorOrder::default()
        };
        let copied = keeper.copy(&order);
        keeper.end();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        (copied, attempts.load(Ordering::Relaxed))
    }

    #[test]
    fn a_damaged_copy_is_made_once_more_and_then_refused() {
        assert!(matches!(copy_while_it_changes(0), (Ok(_), 1)));
        let (copied, attempts) = copy_while_it_changes(1);
        assert_eq!((copied.unwrap().files[0].bytes, attempts), (3, 2));
        let (copied, attempts) = copy_while_it_changes(2);
        assert!(matches!(copied, Err(MirrorFailure::Damaged { .. })), "{copied:?}");
        assert_eq!(attempts, 2);
    }

    #[test]
    fn a_full_file_system_is_named_with_the_need() {
        let (share, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(share.path().join("config.json"), vec![b' '; 3_000_000]).unwrap();
        let keeper = keeper(|_: &Path| Err(io::ErrorKind::StorageFull.into()));
        let order = MirrorOrder {
            version: "v1".to_owned(),
            source: share.path().to_owned(),
            places: vec![place.path().to_owned()],
            timeout_ms: 60_000,
            ..MirrorOrder::default()
        };
        let error = keeper.copy(&order).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("3.0 MB are needed; {} offers ", place.path().display())),
            "{text}"
        );
        let MirrorFailure::NoRoom { found, .. } = &error else { panic!("{error}") };
        assert_eq!(found[0].0, place.path());
        let none = keeper.copy(&MirrorOrder { places: vec!["/no/such/place".into()], ..order.clone() });
        assert!(matches!(none, Err(MirrorFailure::NoRoom { .. })), "{none:?}");
        let names = ["", "..", "a/b"].map(str::to_owned);
        for version in names {
            assert!(matches!(
                keeper.copy(&MirrorOrder { version, ..order.clone() }),
                Err(MirrorFailure::Other { .. })
            ));
        }
    }
}
