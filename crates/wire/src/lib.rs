//! Connections between the processes of a run: frames of a message and tensors over TCP.
//!
//! Blocking sockets and threads; every wait has a deadline. One process listens ([`Listener`]), the others dial in
//! ([`connect`]); afterwards both ends are the same [`Connection`].
//!
//! # Frames
//!
//! A frame is a `u64` length in little-endian order and as many bytes of one safetensors buffer: a `u64` header length,
//! the header, the data of the tensors. The header's `__metadata__` holds `kind` (`data`, `beat` or `handshake`),
//! `epoch`, `job` and `message`, which is JSON text.
//!
//! A receiver trusts no size. It compares both lengths with [`Options::frame_bytes`] and [`HEADER_BYTES`], reads the
//! header, compares the sizes of the tensors with the length of the frame, and reads the data as it arrives. Memory
//! is allocated for bytes that have arrived, not for bytes that were announced.
//!
//! `(epoch, job)` orders the frames of a gang that was restarted: [`Connection::discard_before`] drops the late ones.
//!
//! # Handshake
//!
//! `P` is HMAC-SHA256 with the token of the run as key; its input is a label for the direction, both nonces and the
//! body. A body states role, index, epoch and build. Both ends are authenticated before a field is believed.
//!
//! ```text
//! connecting                                        accepting
//!   "rloom w1", hello { nonce c }            ──►
//!                                            ◄──    "rloom w1", challenge { nonce a }
//!   proof { body, P("connect", c, a, body) } ──►
//!                                            ◄──    welcome { body, P("accept", c, a, body) }
//!                                                   or refused, after a wrong proof
//! ```
//!
//! Builds must be equal ([`BUILD`] contains a fingerprint of the sources), and the epoch at least that of
//! [`Listener::set_epoch`]. The token itself is never sent. Frames are neither encrypted nor signed.
//!
//! Peers with the role of a listener's [`Streams`] exchange plain bytes afterwards, without frames, beats and lease.
//!
//! # Liveness
//!
//! A thread of each end sends a beat every [`Options::beat`] with the phase and the progress of its process, whatever
//! the process does. An end that receives no byte for [`Options::lease`] while it reads fails with
//! [`WireError::Lease`]; the end of the stream is [`WireError::Closed`]. While [`Options::queue_bytes`] of
//! frames wait for `receive`, nothing is read, and no lease expires.

mod beat;
mod bytes;
mod connection;
mod error;
mod frame;
mod handshake;
mod header;
mod identity;
mod listener;
mod options;
mod progress;
mod reader;
mod tensor;
mod token;
mod writer;

pub use bytes::Bytes;
pub use connection::{Connection, connect, connect_stream};
pub use error::{FrameError, WireError};
pub use frame::Frame;
pub use header::HEADER_BYTES;
pub use identity::{BUILD, Identity, Peer};
pub use listener::{Listener, Streams};
pub use options::Options;
pub use progress::{Beat, Progress};
pub use safetensors::Dtype;
pub use tensor::{Element, Tensor};
pub use token::{TOKEN_VARIABLE, Token};
