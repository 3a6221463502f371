//! Versions from other daemons.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Frame, connect};

use super::copy::{Digesting, create};
use super::delta::{Known, decode};
use super::failure::{Limits, MirrorFailure};
use super::keeper::{Keeper, needing};
use super::manifest::{MirrorFile, total};
use super::message::{Base, CONTENTS, MirrorOrder, MirrorSource, PeerReply, PeerRequest, SentFile, SentForm};
use super::version::{Delta, Part, Version, delta_path};

/// Longest attempt to connect to a parent.
const CONNECTING: Duration = Duration::from_secs(10);
/// Longest wait for one piece of a file.
const STALL: Duration = Duration::from_secs(30);

/// Gets a version from `parent`, by the difference to `base` where the parent gives one.
pub(super) fn fetch(
    keeper: &Keeper,
    parent: SocketAddr,
    order: &MirrorOrder,
    files: &[MirrorFile],
    base: Option<&Arc<Version>>,
    limits: Limits<'_>,
) -> Result<(Version, MirrorSource, u64), MirrorFailure> {
    let (identity, token) = keeper.identity();
    let deadline = limits.deadline.min(Instant::now() + CONNECTING);
    let connection = connect(&parent.to_string(), token, &identity, keeper.options, deadline);
    let connection = connection.map_err(MirrorFailure::other)?;
    let known = base.map(|base| Base { version: base.name.clone(), files: base.files.clone() });
    let request = PeerRequest::Fetch { version: order.version.clone(), base: known.clone() };
    let request = Frame::of(0, 0, &request).map_err(MirrorFailure::other)?;
    connection.send(&request, deadline).map_err(MirrorFailure::other)?;
    // The parent may have to make a delta first: as long as it beats, that is no reason to leave it.
    let sent = match receive(&connection, limits.deadline, limits)?.0 {
        PeerReply::Files { files } => files,
        PeerReply::Refused { reason } => return Err(MirrorFailure::Other { reason }),
        PeerReply::Data => return Err(MirrorFailure::other("the parent has sent data out of order")),
    };
    if !sent.iter().map(|sent| &sent.file).eq(files) {
        return Err(MirrorFailure::other("the parent has other files of this version"));
    }
    let has_delta = sent.iter().any(|sent| matches!(sent.form, SentForm::Delta { .. }));
    let need = total(files);
    let part = keeper.part(order, need)?;
    let place = part.path().to_owned();
    let receiver = Receiver { connection: &connection, parent, base, part: &part, limits };
    let received = receiver.receive_all(&sent, &order.version);
    let (received, deltas) = received.map_err(|failure| needing(failure, need, &place))?;
    let version = part.complete(&order.version, files.to_vec());
    if let (Some(known), Some(folder)) = (known, deltas) {
        *version.delta() = Some((known, Some(Arc::new(Delta::new(sent, folder)))));
    }
    let from = if has_delta { MirrorSource::Delta(parent) } else { MirrorSource::Peer(parent) };
    Ok((version, from, received))
}

/// The next reply, with the contents of a `Data` frame.
fn receive(
    connection: &Connection,
    deadline: Instant,
    limits: Limits<'_>,
) -> Result<(PeerReply, Frame), MirrorFailure> {
    limits.check()?;
    let frame = connection.receive(deadline).map_err(MirrorFailure::other)?;
    let reply = frame.parse().map_err(MirrorFailure::other)?;
    Ok((reply, frame))
}

/// A transfer.
struct Receiver<'a> {
    connection: &'a Connection,
    parent: SocketAddr,
    base: Option<&'a Arc<Version>>,
    part: &'a Part,
    limits: Limits<'a>,
}

impl Receiver<'_> {
    /// Receives all files; returns the bytes that came, and the folder of the deltas among them.
    fn receive_all(&self, sent: &[SentFile], version: &str) -> Result<(u64, Option<Part>), MirrorFailure> {
        let mut deltas = None;
        let mut received = 0;
        for (index, SentFile { file, form }) in sent.iter().enumerate() {
            let target = self.part.path().join(&file.name);
            match form {
                SentForm::Full => {
                    received += file.bytes;
                    self.receive_file(&target, file)?;
                }
                SentForm::Same => self.take_over(file, &target)?,
                SentForm::Delta { bytes, crc } => {
                    received += bytes;
                    if deltas.is_none() {
                        deltas = Some(self.part.beside(&format!("{version}.delta"))?);
                    }
                    let Some(folder) = &deltas else { continue };
                    let path = delta_path(folder, index);
                    let expected = MirrorFile { name: file.name.clone(), bytes: *bytes, crc: *crc };
                    self.receive_file(&path, &expected)?;
                    let (base, before) = self.base_of(file)?;
                    let before_path = base.path().join(&file.name);
                    let known = Known { path: &before_path, file: before };
                    decode(known, &path, Known { path: &target, file }, self.limits, &create)?;
                }
            }
        }
        Ok((received, deltas))
    }

    /// The base's file of the same name.
    fn base_of(&self, file: &MirrorFile) -> Result<(&Arc<Version>, &MirrorFile), MirrorFailure> {
        let found = self.base.and_then(|base| base.file(&file.name).map(|before| (base, before)));
        found.ok_or_else(|| MirrorFailure::damaged(&self.place(file), "its base is not here"))
    }

    /// Takes a file from the base.
    fn take_over(&self, file: &MirrorFile, target: &Path) -> Result<(), MirrorFailure> {
        let (base, before) = self.base_of(file)?;
        if before != file {
            return Err(MirrorFailure::damaged(&self.place(file), "the base has another file"));
        }
        let path = base.path().join(&file.name);
        let linked = fs::hard_link(&path, target).or_else(|_| fs::copy(&path, target).map(drop));
        linked.map_err(|error| MirrorFailure::io("copy", &path, &error))
    }

    /// Receives the contents of a file, which must be as announced.
    fn receive_file(&self, target: &Path, expected: &MirrorFile) -> Result<(), MirrorFailure> {
        let writing = |error: std::io::Error| MirrorFailure::io("write", target, &error);
        let mut to: Digesting<Box<dyn Write>> = Digesting::new(create(target).map_err(writing)?);
        while to.bytes < expected.bytes {
            let deadline = self.limits.deadline.min(Instant::now() + STALL);
            let (PeerReply::Data, frame) = receive(self.connection, deadline, self.limits)? else {
                return Err(MirrorFailure::other("the parent has sent no data"));
            };
            let contents = &frame.tensor(CONTENTS).map_err(MirrorFailure::other)?.data;
            if contents.is_empty() || contents.len() as u64 > expected.bytes - to.bytes {
                return Err(MirrorFailure::other("the parent has sent data of a wrong size"));
            }
            to.write(contents).map_err(writing)?;
        }
        let found = to.finish(&expected.name).map_err(writing)?;
        if found == *expected {
            return Ok(());
        }
        Err(MirrorFailure::damaged(&self.place(expected), "it was damaged on its way"))
    }

    /// The file at its parent, for messages.
    fn place(&self, file: &MirrorFile) -> std::path::PathBuf {
        Path::new(&self.parent.to_string()).join(&file.name)
    }
}
