//! Bodies of requests and answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use tokio::time::timeout;

use crate::problem::{Problem, ProblemKind};

/// Reads the body of a request.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Incoming,
    limit: usize,
    patience: Duration,
) -> Result<Bytes, Problem> {
    let too_large = || {
        let message = format!("the body is longer than {limit} bytes");
        Problem::new(ProblemKind::TooLarge, message)
    };
    let encoding = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(Problem::new(ProblemKind::Encoding, "compressed bodies are not supported"));
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    match timeout(patience, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Problem::invalid(format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = format!("the body did not arrive within {} s", patience.as_secs_f64());
            Err(Problem::new(ProblemKind::Slow, message))
        }
    }
}

/// Future of the next bytes of a stream and of what follows.
pub(super) type NextBytes = Pin<Box<dyn Future<Output = Option<(Bytes, NextStep)>> + Send>>;

/// What follows the bytes of a stream.
pub(super) struct NextStep(pub(super) Option<NextBytes>);

/// Body of an answer. Dropping a stream cancels what produces it.
pub(super) enum AnswerBody {
    Whole(Option<Bytes>),
    Stream(Option<NextBytes>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(next) => next,
        };
        let Some(future) = next else { return Poll::Ready(None) };
        let Poll::Ready(step) = future.as_mut().poll(cx) else { return Poll::Pending };
        let (bytes, following) =
            step.map_or((None, None), |(bytes, NextStep(following))| (Some(bytes), following));
        *next = following;
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Stream(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
