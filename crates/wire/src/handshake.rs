//! The handshake: both ends prove that they know the token before either believes the other.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{FrameError, WireError};
use crate::frame::{self, Frame, Kind, ReadEnd};
use crate::identity::{Identity, Peer};
use crate::token::{Token, random_hex};

/// First bytes of both directions.
const MAGIC: &[u8; 8] = b"rloom w1";

/// Largest frame of a handshake in bytes.
const LARGEST: u64 = 16 << 10;

/// Messages of a handshake.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Hello { nonce: String },
    Challenge { nonce: String },
    Proof { body: String, proof: String },
    Welcome { body: String, proof: String },
    WrongToken,
}

/// Body of a proof.
#[derive(Serialize, Deserialize)]
struct Body {
    identity: Identity,
    /// Smallest epoch that the accepting end admits.
    #[serde(default)]
    epoch: u64,
}

/// Parameters of one end.
pub(crate) struct Handshake<'a> {
    pub(crate) token: &'a Token,
    pub(crate) identity: &'a Identity,
    pub(crate) deadline: Instant,
    pub(crate) timeout: Duration,
}

impl Handshake<'_> {
    /// The connecting end.
    pub(crate) fn connect(&self, stream: &TcpStream) -> Result<Peer, WireError> {
        let mut talk = Talk::start(stream, self)?;
        let nonce = random_hex()?;
        talk.send(&Message::Hello { nonce: nonce.clone() })?;
        talk.expect_magic()?;
        let Message::Challenge { nonce: theirs } = talk.receive()? else { return Err(talk.stranger()) };
        let body = talk.body(0)?;
        let proof = self.token.prove(&["connect", &nonce, &theirs, &body]);
        talk.send(&Message::Proof { body, proof })?;
        let (body, proof) = match talk.receive()? {
            Message::Welcome { body, proof } => (body, proof),
            Message::WrongToken => return Err(talk.wrong_token()),
            _ => return Err(talk.stranger()),
        };
        let body = talk.verified(&["accept", &nonce, &theirs, &body], &proof)?;
        let peer = talk.same_build(body.identity)?;
        if self.identity.epoch < body.epoch {
            return Err(WireError::WrongEpoch { peer: "this process".to_owned(), expected: body.epoch });
        }
        Ok(peer)
    }

    /// The accepting end, which admits peers of `epoch` and later ones.
    pub(crate) fn accept(&self, stream: &TcpStream, epoch: u64) -> Result<Peer, WireError> {
        let mut talk = Talk::start(stream, self)?;
        talk.expect_magic()?;
        let Message::Hello { nonce: theirs } = talk.receive()? else { return Err(talk.stranger()) };
        let nonce = random_hex()?;
        talk.send(&Message::Challenge { nonce: nonce.clone() })?;
        let Message::Proof { body, proof } = talk.receive()? else { return Err(talk.stranger()) };
        let verified = talk.verified(&["connect", &theirs, &nonce, &body], &proof);
        if matches!(verified, Err(WireError::WrongToken { .. })) {
            let _ = talk.send(&Message::WrongToken);
        }
        let verified = verified?;
        let body = talk.body(epoch)?;
        let proof = self.token.prove(&["accept", &theirs, &nonce, &body]);
        talk.send(&Message::Welcome { body, proof })?;
        let peer = talk.same_build(verified.identity)?;
        if peer.identity.epoch < epoch {
            return Err(WireError::WrongEpoch { peer: peer.to_string(), expected: epoch });
        }
        Ok(peer)
    }
}

/// The messages of one handshake.
struct Talk<'a> {
    stream: Timed<'a>,
    address: SocketAddr,
    handshake: &'a Handshake<'a>,
}

impl<'a> Talk<'a> {
    fn start(stream: &'a TcpStream, handshake: &'a Handshake<'a>) -> Result<Self, WireError> {
        let address = stream.peer_addr().map_err(|source| WireError::Io {
            peer: "a connection".to_owned(),
            operation: "handshake",
            source: Arc::new(source),
        })?;
        let mut stream = Timed { stream, deadline: handshake.deadline };
        let started = stream.write_all(MAGIC);
        let talk = Self { stream, address, handshake };
        started.map_err(|error| talk.failed(error))?;
        Ok(talk)
    }

    fn expect_magic(&mut self) -> Result<(), WireError> {
        let mut magic = [0; MAGIC.len()];
        match self.stream.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => Ok(()),
            Ok(()) => Err(self.stranger()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), WireError> {
        let frame = Frame::of(0, 0, message).and_then(|frame| frame::encode(&frame, Kind::Handshake));
        let bytes = frame.map_err(|source| WireError::Frame { peer: self.address.to_string(), source })?;
        self.stream.write_all(&bytes).map_err(|error| self.failed(error))
    }

    fn receive(&mut self) -> Result<Message, WireError> {
        match frame::read(&mut self.stream, LARGEST) {
            Ok((Kind::Handshake, frame)) => frame.parse().map_err(|_: FrameError| self.stranger()),
            Ok(_) | Err(ReadEnd::Frame(_)) => Err(self.stranger()),
            Err(ReadEnd::Closed | ReadEnd::Cut) => Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
            Err(ReadEnd::Io(error)) => Err(self.failed(error)),
        }
    }

    /// The own body.
    fn body(&self, epoch: u64) -> Result<String, WireError> {
        let body = Body { identity: self.handshake.identity.clone(), epoch };
        let frame = Frame::of(0, 0, &body);
        let frame = frame.map_err(|source| WireError::Frame { peer: self.address.to_string(), source })?;
        Ok(frame.message)
    }

    /// The body among the parts, if its proof is right.
    fn verified(&self, parts: &[&str], proof: &str) -> Result<Body, WireError> {
        if !self.handshake.token.verify(parts, proof) {
            return Err(self.wrong_token());
        }
        let body = parts.last().copied().unwrap_or_default();
        serde_json::from_str(body).map_err(|_| self.stranger())
    }

    fn same_build(&self, identity: Identity) -> Result<Peer, WireError> {
        let peer = Peer { identity, address: self.address };
        let (found, expected) = (&peer.identity.build, &self.handshake.identity.build);
        if found != expected {
            return Err(WireError::WrongBuild {
                peer: peer.to_string(),
                found: found.clone(),
                expected: expected.clone(),
            });
        }
        Ok(peer)
    }

    fn stranger(&self) -> WireError {
        WireError::NotRloom { peer: self.address.to_string() }
    }

    fn wrong_token(&self) -> WireError {
        WireError::WrongToken { peer: self.address.to_string() }
    }

    fn failed(&self, error: io::Error) -> WireError {
        let peer = self.address.to_string();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                WireError::HandshakeTimeout { peer, timeout: self.handshake.timeout }
            }
            io::ErrorKind::UnexpectedEof => WireError::NotRloom { peer },
            _ => WireError::Io { peer, operation: "handshake", source: Arc::new(error) },
        }
    }
}

/// A stream whose operations end at a deadline, however slowly bytes arrive.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
