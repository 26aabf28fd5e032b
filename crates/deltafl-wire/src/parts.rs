//! Long messages in parts, so that no message of the stream is long.

use bytes::{Bytes, BytesMut};

use super::{PART, proto::Part};

/// A message as parts that follow each other on the stream.
pub fn parts(message: Bytes) -> impl Iterator<Item = Part> {
    let total = u32::try_from(message.len()).expect("a message is far below 4 GiB");
    let starts = (0..message.len().max(1)).step_by(PART);
    starts.map(move |start| {
        let end = (start + PART).min(message.len());
        Part { total, data: message.slice(start..end) }
    })
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
