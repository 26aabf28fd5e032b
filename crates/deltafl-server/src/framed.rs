//! A request body whose chunks are split at message boundaries.
//!
//! The gRPC library copies a body into a buffer and reserves room for a whole message after the
//! buffered bytes. With chunks as received from the network, that is two messages and an HTTP/2
//! frame, rounded up to a power of two. If the length of a message arrives in its own chunk and no
//! bytes follow the message, it is one message.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The bytes before a message: the compression flag and the length.
const HEADER: usize = 5;

/// A body whose chunks never cross a message boundary.
pub(crate) struct Framed<B> {
    body: B,
    /// Received bytes that were not passed on.
    held: Bytes,
    cut: Cut,
}

/// Tracks the message boundaries in a sequence of bytes.
#[derive(Debug, Default)]
struct Cut {
    header: [u8; HEADER],
    /// The number of received header bytes.
    begun: usize,
    /// The number of missing message bytes.
    left: usize,
}

impl<B> Framed<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, held: Bytes::new(), cut: Cut::default() }
    }
}

impl Cut {
    /// Returns the next chunk of `held`, which is not empty: part of a header or of its message.
    fn next(&mut self, held: &mut Bytes) -> Bytes {
        if self.left > 0 {
            let piece = held.split_to(self.left.min(held.len()));
            self.left -= piece.len();
            return piece;
        }
        let piece = held.split_to((HEADER - self.begun).min(held.len()));
        self.header[self.begun..][..piece.len()].copy_from_slice(&piece);
        self.begun += piece.len();
        if self.begun == HEADER {
            let [_, length @ ..] = self.header;
            (self.begun, self.left) = (0, u32::from_be_bytes(length) as usize);
        }
        piece
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Framed<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, held, cut } = &mut *self;
        while held.is_empty() {
            match ready!(Pin::new(&mut *body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => *held = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(cut.next(held)))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pieces_end_where_headers_and_messages_do(
            lengths in prop::collection::vec(0usize..300, 1..8),
            cuts in prop::collection::vec(1usize..200, 1..8),
        ) {
            let mut sent = Vec::new();
            for &length in &lengths {
                sent.push(0);
                sent.extend_from_slice(&(length as u32).to_be_bytes());
                sent.extend(std::iter::repeat_n(7, length));
            }
            let mut ends: Vec<usize> = Vec::new();
            for &length in &lengths {
                let begun = ends.last().copied().unwrap_or(0);
                ends.extend([begun + HEADER, begun + HEADER + length]);
            }
            let (mut cut, mut rest, mut passed) = (Cut::default(), Bytes::from(sent.clone()), Vec::new());
            for &size in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let mut held = rest.split_to(size.min(rest.len()));
                while !held.is_empty() {
                    let from = passed.len();
                    passed.extend_from_slice(&cut.next(&mut held));
                    prop_assert!(!ends.iter().any(|&end| from < end && end < passed.len()));
                }
            }
            prop_assert_eq!(passed, sent);
        }
    }
}
