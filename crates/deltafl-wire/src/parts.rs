//! Long messages in parts, so that no message of the stream is long.

use bytes::{Bytes, BytesMut};

use super::{PART, proto::Part};

/// A message as parts that follow each other on the stream.
pub fn parts(message: Bytes) -> Parts {
    parts_of(vec![message])
}

/// A message that lies in pieces, as parts that follow each other on the stream. It is put together part by part, as it goes.
pub fn parts_of(pieces: Vec<Bytes>) -> Parts {
    let left = pieces.iter().map(Bytes::len).sum();
    let total = u32::try_from(left).expect("a message is far below 4 GiB");
    Parts { total, left, ended: false, first: Bytes::new(), pieces: pieces.into_iter() }
}

/// The parts of a message.
#[derive(Debug)]
pub struct Parts {
    total: u32,
    /// Bytes to come.
    left: usize,
    ended: bool,
    /// What is left of the piece that goes first.
    first: Bytes,
    pieces: std::vec::IntoIter<Bytes>,
}

impl Iterator for Parts {
    type Item = Part;

    /// At least one part, also of a message of no bytes.
    fn next(&mut self) -> Option<Part> {
        if self.ended {
            return None;
        }
        let data = self.take(PART.min(self.left));
        self.left -= data.len();
        self.ended = self.left == 0;
        Some(Part { total: self.total, data })
    }
}

impl Parts {
    /// The next bytes, of which there are so many; copied only where pieces meet.
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
            let mut piece = self.pieces.next().expect("as many bytes as were counted");
            data.extend_from_slice(&piece.split_to(piece.len().min(len - data.len())));
            self.first = piece;
        }
        data.freeze()
    }
}

/// Why a part cannot belong to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The message would be longer than the receiver allows.
    #[error("a message of {total} bytes is over the limit of {limit}")]
    TooLong {
        /// Bytes announced.
        total: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The part is empty, of another message, or goes beyond the end.
    #[error("a part does not fit the message that it belongs to")]
    Misfit,
}

/// A message that is coming in.
#[derive(Debug, Default)]
pub struct Assembly {
    total: usize,
    received: BytesMut,
}

impl Assembly {
    /// Whether a message has begun and is not complete.
    pub fn is_partial(&self) -> bool {
        !self.received.is_empty()
    }

    /// Takes in the next part; the message, if this was its last. Memory for all of it is set aside when it begins, in one
    /// piece: what grows by doubling leaves holes behind. `limit` bounds it, and for the whole server the room
    /// that its limits give to messages that are coming in.
    pub fn take(&mut self, part: Part, limit: usize) -> Result<Option<Bytes>, PartError> {
        let total = part.total as usize;
        if total > limit {
            return Err(PartError::TooLong { total, limit });
        }
        let begins = !self.is_partial();
        let fits = self.received.len() + part.data.len() <= total;
        if (!begins && total != self.total) || !fits || (part.data.is_empty() && total > 0) {
            return Err(PartError::Misfit);
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
        let mut assembly = Assembly::default();
        for len in [0, 1, PART - 1, PART, PART + 1, 3 * PART + 5] {
            let message: Bytes = (0..len).map(|i| i as u8).collect::<Vec<_>>().into();
            let taken: Vec<Option<Bytes>> =
                parts(message.clone()).map(|part| assembly.take(part, 1 << 20).unwrap()).collect();
            assert_eq!(taken.last(), Some(&Some(message)));
            assert!(taken[..taken.len() - 1].iter().all(Option::is_none));
        }
    }

    #[test]
    fn a_message_in_pieces_has_the_parts_of_the_whole() {
        let whole: Bytes = (0..3 * PART + 5).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
        for cuts in [vec![], vec![0], vec![1, 7, 7, PART - 1, PART, PART + 1], vec![2 * PART, 3 * PART + 5]] {
            let ends = cuts.iter().copied().chain([whole.len()]);
            let pieces = [0].iter().chain(&cuts).zip(ends).map(|(&from, to)| whole.slice(from..to)).collect();
            assert!(parts_of(pieces).eq(parts(whole.clone())), "cut at {cuts:?}");
        }
        assert!(parts_of(vec![]).eq(parts(Bytes::new())));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let part = |total: u32, len: usize| Part { total, data: vec![0; len].into() };
        let begun = || {
            let mut assembly = Assembly::default();
            assembly.take(part(10, 4), 10).unwrap();
            assembly
        };
        assert_eq!(begun().take(part(11, 4), 20), Err(PartError::Misfit));
        assert_eq!(begun().take(part(10, 7), 10), Err(PartError::Misfit));
        assert_eq!(begun().take(part(10, 0), 10), Err(PartError::Misfit));
        assert_eq!(Assembly::default().take(part(5, 6), 10), Err(PartError::Misfit));
        let long = Assembly::default().take(part(11, 4), 10);
        assert_eq!(long, Err(PartError::TooLong { total: 11, limit: 10 }));
    }
}
