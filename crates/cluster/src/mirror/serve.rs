//! Versions for other daemons.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Dtype, Frame, Listener, Tensor, WireError};

use super::block::LEVEL;
use super::copy::{Digesting, PIECE};
use super::delta::{Known, encode};
use super::failure::{Limits, MirrorFailure};
use super::keeper::{Keeper, ROLE};
use super::manifest::is_safetensors;
use super::message::{Base, CONTENTS, PeerReply, PeerRequest, SentFile, SentForm, is_version};
use super::version::{Delta, Version, delta_path};

/// Interval at which the listener looks whether the daemon ends.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time to send one piece, and longest silence of a daemon that is served.
const STALL: Duration = Duration::from_secs(30);
/// Longest time to make a delta.
const ENCODING: Duration = Duration::from_mins(10);

/// Serves daemons until this one ends.
pub(super) fn accept(keeper: &Arc<Keeper>, listener: &Listener) {
    while !keeper.is_ending.load(Ordering::Relaxed) {
        let Ok(connection) = listener.accept(Instant::now() + LOOK) else { continue };
        if connection.peer().identity.role == ROLE {
            let keeper = Arc::clone(keeper);
            let serve = move || serve(&keeper, &connection);
            // Without a thread the connection is closed, and the other daemon asks elsewhere.
            let _ = thread::Builder::new().name("mirror peer".to_owned()).spawn(serve);
        }
    }
}

/// Answers requests until the connection ends. A failure closes it, which the other daemon sees.
fn serve(keeper: &Keeper, connection: &Connection) {
    while let Ok(frame) = connection.receive(Instant::now() + STALL) {
        let Ok(PeerRequest::Fetch { version, base }) = frame.parse() else { return };
        let sent = match keeper.version(&version) {
            Some(version) => send_version(keeper, connection, &version, base),
            None => reply(connection, &PeerReply::Refused { reason: format!("it does not have {version}") }),
        };
        if sent.is_err() || keeper.is_ending.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn reply(connection: &Connection, reply: &PeerReply) -> Result<(), MirrorFailure> {
    let frame = Frame::of(0, 0, reply).map_err(MirrorFailure::other)?;
    connection.send(&frame, Instant::now() + STALL).map_err(MirrorFailure::other)
}

fn send_version(
    keeper: &Keeper,
    connection: &Connection,
    version: &Version,
    base: Option<Base>,
) -> Result<(), MirrorFailure> {
    let delta = base.and_then(|base| delta_to(keeper, version, base));
    let full = || version.files.iter().map(|file| SentFile { file: file.clone(), form: SentForm::Full });
    let files = delta.as_ref().map_or_else(|| full().collect(), |delta| delta.files.clone());
    reply(connection, &PeerReply::Files { files: files.clone() })?;
    for (index, sent) in files.iter().enumerate() {
        match (&sent.form, &delta) {
            (SentForm::Same, _) => {}
            (SentForm::Delta { .. }, Some(delta)) => send_file(keeper, connection, &delta.path(index))?,
            _ => send_file(keeper, connection, &version.path().join(&sent.file.name))?,
        }
    }
    Ok(())
}

/// Sends a file in pieces.
fn send_file(keeper: &Keeper, connection: &Connection, path: &Path) -> Result<(), MirrorFailure> {
    let reading = |error: io::Error| MirrorFailure::io("read", path, &error);
    let mut file = File::open(path).map_err(reading)?;
    loop {
        Limits { deadline: Instant::now() + STALL, is_ending: &keeper.is_ending }.check()?;
        let mut piece = Vec::with_capacity(PIECE);
        (&mut file).take(PIECE as u64).read_to_end(&mut piece).map_err(reading)?;
        if piece.is_empty() {
            return Ok(());
        }
        let mut frame = Frame::of(0, 0, &PeerReply::Data).map_err(MirrorFailure::other)?;
        let shape = vec![piece.len()];
        let name = CONTENTS.to_owned();
        frame.tensors.push(Tensor { name, dtype: Dtype::U8, shape, data: piece.into() });
        let sent: Result<(), WireError> = connection.send(&frame, Instant::now() + STALL);
        sent.map_err(MirrorFailure::other)?;
    }
}

/// The delta of a version to a base that this daemon has as well; made when it is first asked for.
fn delta_to(keeper: &Keeper, version: &Version, base: Base) -> Option<Arc<Delta>> {
    if !is_version(&base.version) {
        return None;
    }
    let mut known = version.delta();
    if let Some((last, delta)) = &*known
        && (&last.version, &last.files) == (&base.version, &base.files)
    {
        return delta.clone();
    }
    let own = keeper.version(&base.version).filter(|own| own.files == base.files)?;
    let limits = Limits { deadline: Instant::now() + ENCODING, is_ending: &keeper.is_ending };
    // Whatever keeps it from being made, the version itself is there.
    let made = make_delta(version, &own, limits).ok().flatten().map(Arc::new);
    *known = Some((base, made.clone()));
    made
}

/// Encodes the files of a version; `None` if that makes them no smaller.
fn make_delta(version: &Version, base: &Version, limits: Limits<'_>) -> Result<Option<Delta>, MirrorFailure> {
    let folder = version.beside(&format!("{}.delta", version.name))?;
    let mut files = Vec::with_capacity(version.files.len());
    let mut is_smaller = false;
    for (index, file) in version.files.iter().enumerate() {
        let form = match base.file(&file.name) {
            Some(before) if before == file => SentForm::Same,
            Some(before) if is_safetensors(&file.name) => {
                let paths = (base.path().join(&file.name), version.path().join(&file.name));
                let path = delta_path(&folder, index);
                let writing = |error: io::Error| MirrorFailure::io("write", &path, &error);
                let mut out = Digesting::new(io::BufWriter::new(File::create(&path).map_err(writing)?));
                let (base, new) = (Known { path: &paths.0, file: before }, Known { path: &paths.1, file });
                if encode(base, new, &mut out, LEVEL, limits)? {
                    let made = out.finish(&file.name).map_err(writing)?;
                    SentForm::Delta { bytes: made.bytes, crc: made.crc }
                } else {
                    let _ = fs::remove_file(&path);
                    SentForm::Full
                }
            }
            _ => SentForm::Full,
        };
        is_smaller |= !matches!(form, SentForm::Full);
        files.push(SentFile { file: file.clone(), form });
    }
    Ok(is_smaller.then(|| Delta::new(files, folder)))
}
