//! A response body with a bounded number of unsent chunks.
//!
//! HTTP/2 reads from a body as long as the peer's window has room. The connection keeps the
//! resulting list until it closes, 45 kB for each device in a round with 500 others. This body
//! waits until its earlier chunks are written. A device then costs the same whether it participated
//! or not, and a device that does not read delays little data.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The maximum number of unsent chunks.
const PIECES: usize = 8;
/// The number of unsent bytes above which the body waits.
const BYTES: usize = 64 << 10;

/// A body with few unsent chunks.
pub(crate) struct Paced<B> {
    body: B,
    unsent: Arc<Mutex<Unsent>>,
}

/// The chunks that are not written yet.
#[derive(Default)]
struct Unsent {
    pieces: usize,
    bytes: usize,
    waiting: Option<Waker>,
}

/// A chunk that counts as unsent until it is dropped.
struct Piece {
    bytes: Bytes,
    unsent: Arc<Mutex<Unsent>>,
}

impl<B> Paced<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, unsent: Arc::default() }
    }
}

impl Unsent {
    /// Returns `true` if another chunk may be sent. Otherwise the caller is woken when it may.
    fn has_room(&mut self, context: &Context<'_>) -> bool {
        let has_room = self.pieces < PIECES && self.bytes < BYTES;
        if !has_room {
            self.waiting = Some(context.waker().clone());
        }
        has_room
    }
}

impl Piece {
    fn new(bytes: Bytes, unsent: &Arc<Mutex<Unsent>>) -> Self {
        let mut all = unsent.lock().unwrap_or_else(PoisonError::into_inner);
        all.pieces += 1;
        all.bytes += bytes.len();
        Self { bytes, unsent: Arc::clone(unsent) }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut all = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        all.pieces -= 1;
        all.bytes -= self.bytes.len();
        let waiting = all.waiting.take();
        drop(all);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, unsent } = &mut *self;
        if !unsent.lock().unwrap_or_else(PoisonError::into_inner).has_room(context) {
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(body).poll_frame(context));
        let paced =
            |frame: Frame<Bytes>| frame.map_data(|bytes| Bytes::from_owner(Piece::new(bytes, unsent)));
        Poll::Ready(frame.map(|frame| frame.map(paced)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// A body that always has another chunk of this length.
    struct Endless(usize);

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(vec![7; self.0].into()))))
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of chunks that the body yields before it waits.
    fn given(body: &mut Paced<Endless>, wakes: &Arc<Wakes>) -> Vec<Bytes> {
        let waker = Arc::clone(wakes).into();
        let mut given = Vec::new();
        while let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(&mut Context::from_waker(&waker)) {
            given.push(frame.unwrap().unwrap().into_data().unwrap());
        }
        given
    }

    #[test]
    fn a_body_waits_until_what_it_gave_was_written() {
        let (mut body, wakes) = (Paced::new(Endless(100)), Arc::<Wakes>::default());
        let mut pieces = given(&mut body, &wakes);
        assert_eq!(pieces.len(), PIECES);
        assert!(pieces.iter().all(|piece| piece[..] == [7; 100]));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        pieces.pop();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(given(&mut body, &wakes).len(), 1);
    }

    #[test]
    fn a_piece_of_any_length_may_go_and_long_ones_go_alone() {
        let (mut body, wakes) = (Paced::new(Endless(BYTES)), Arc::<Wakes>::default());
        let pieces = given(&mut body, &wakes);
        assert_eq!(pieces.len(), 1);
        let part = pieces[0].slice(5..9);
        drop(pieces);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "a part of it is still on its way");
        drop(part);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(given(&mut Paced::new(Endless(BYTES / 2)), &wakes).len(), 2);
    }
}
