//! Fragmentation of long messages, so that every message on a stream is short.

use bytes::{Bytes, BytesMut};

use super::{FRAGMENT, proto::Part};

/// Splits a message into fragments, in stream order.
pub fn fragments(message: Bytes) -> Fragments {
    fragments_from(vec![message])
}

/// Splits a message that consists of several buffers into fragments, in stream order.
///
/// Each fragment is assembled when the iterator reaches it, so the whole message is never copied.
pub fn fragments_from(pieces: Vec<Bytes>) -> Fragments {
    let left = pieces.iter().map(Bytes::len).sum();
    let total = u32::try_from(left).expect("a message is far below 4 GiB");
    Fragments { total, left, ended: false, first: Bytes::new(), pieces: pieces.into_iter() }
}

/// An iterator over the fragments of a message.
#[derive(Debug)]
pub struct Fragments {
    total: u32,
    /// Bytes not yet returned.
    left: usize,
    ended: bool,
    /// The remainder of the current buffer.
    first: Bytes,
    pieces: std::vec::IntoIter<Bytes>,
}

impl Iterator for Fragments {
    type Item = Part;

    /// Returns at least one fragment, even for an empty message.
    fn next(&mut self) -> Option<Part> {
        if self.ended {
            return None;
        }
        let data = self.take(FRAGMENT.min(self.left));
        self.left -= data.len();
        self.ended = self.left == 0;
        Some(Part { total: self.total, data })
    }
}

impl Fragments {
    /// Returns the next `len` bytes. Copies only if they span two buffers.
    fn take(&mut self, len: usize) -> Bytes {
        if self.first.is_empty() {
            self.first = self.pieces.next().unwrap_or_default();
        }
        if self.first.len() >= len {
            return self.first.split_to(len);
        }
        let mut data = BytesMut::with_capacity(len);
        data.extend_from_slice(&std::mem::take(&mut self.first));
        while data.len() < len {
            let mut piece = self.pieces.next().expect("`left` counts the bytes of all pieces");
            data.extend_from_slice(&piece.split_to(piece.len().min(len - data.len())));
            self.first = piece;
        }
        data.freeze()
    }
}

/// The error of a fragment that fits no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// The message exceeds the receiver's limit.
    #[error("a message of {total} bytes exceeds the limit of {limit}")]
    TooLong {
        /// The announced length in bytes.
        total: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The fragment is empty, belongs to another message, or extends beyond the end.
    #[error("a fragment does not fit its message")]
    Misfit,
}

/// A partially received message.
#[derive(Debug, Default)]
pub struct Reassembly {
    total: usize,
    received: BytesMut,
}

impl Reassembly {
    /// Returns whether a message has started and is incomplete.
    pub fn is_partial(&self) -> bool {
        !self.received.is_empty()
    }

    /// Adds the next fragment. Returns the message if this fragment completes it.
    ///
    /// The buffer for the whole message is allocated at once, because a growing buffer fragments
    /// the heap. `limit` bounds its size. The server also bounds the total of all partial messages.
    ///
    /// # Errors
    /// Fails if the message exceeds `limit` or the fragment does not fit the message.
    pub fn take(&mut self, part: Part, limit: usize) -> Result<Option<Bytes>, FragmentError> {
        let total = part.total as usize;
        if total > limit {
            return Err(FragmentError::TooLong { total, limit });
        }
        let begins = !self.is_partial();
        let fits = self.received.len() + part.data.len() <= total;
        if (!begins && total != self.total) || !fits || (part.data.is_empty() && total > 0) {
            return Err(FragmentError::Misfit);
        }
        if begins && part.data.len() == total {
            return Ok(Some(part.data));
        }
        if begins {
            (self.total, self.received) = (total, BytesMut::with_capacity(total));
        }
        self.received.extend_from_slice(&part.data);
        let complete = self.received.len() == total;
        Ok(complete.then(|| std::mem::take(&mut self.received).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_length_come_through_in_parts() {
        let mut assembly = Reassembly::default();
        for len in [0, 1, FRAGMENT - 1, FRAGMENT, FRAGMENT + 1, 3 * FRAGMENT + 5] {
            let message: Bytes = (0..len).map(|i| i as u8).collect::<Vec<_>>().into();
            let taken: Vec<Option<Bytes>> =
                fragments(message.clone()).map(|part| assembly.take(part, 1 << 20).unwrap()).collect();
            assert_eq!(taken.last(), Some(&Some(message)));
            assert!(taken[..taken.len() - 1].iter().all(Option::is_none));
        }
    }

    #[test]
    fn a_message_in_pieces_has_the_parts_of_the_whole() {
        let whole: Bytes = (0..3 * FRAGMENT + 5).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
        for cuts in [
            vec![],
            vec![0],
            vec![1, 7, 7, FRAGMENT - 1, FRAGMENT, FRAGMENT + 1],
            vec![2 * FRAGMENT, 3 * FRAGMENT + 5],
        ] {
            let ends = cuts.iter().copied().chain([whole.len()]);
            let pieces = [0].iter().chain(&cuts).zip(ends).map(|(&from, to)| whole.slice(from..to)).collect();
            assert!(fragments_from(pieces).eq(fragments(whole.clone())), "cut at {cuts:?}");
        }
        assert!(fragments_from(vec![]).eq(fragments(Bytes::new())));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let part = |total: u32, len: usize| Part { total, data: vec![0; len].into() };
        let begun = || {
            let mut assembly = Reassembly::default();
            assembly.take(part(10, 4), 10).unwrap();
            assembly
        };
        assert_eq!(begun().take(part(11, 4), 20), Err(FragmentError::Misfit));
        assert_eq!(begun().take(part(10, 7), 10), Err(FragmentError::Misfit));
        assert_eq!(begun().take(part(10, 0), 10), Err(FragmentError::Misfit));
        assert_eq!(Reassembly::default().take(part(5, 6), 10), Err(FragmentError::Misfit));
        let long = Reassembly::default().take(part(11, 4), 10);
        assert_eq!(long, Err(FragmentError::TooLong { total: 11, limit: 10 }));
    }
}
