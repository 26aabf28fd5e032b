//! How messages are written to a stream and read from it, with little memory between two of them.
//!
//! A server holds a stream for every device that is online, most of them silent at any time. What a stream keeps is
//! therefore counted in bytes times devices: here it keeps one part of a message each way, and never more.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::PART;

/// Bytes that a stream keeps before its first message.
const AT_REST: usize = 512;

/// Protocol Buffers in the frames of gRPC: what `T` says is sent, `U` received.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Outward<T>;
    type Decoder = Inward<U>;

    fn encoder(&mut self) -> Outward<T> {
        Outward(PhantomData)
    }

    fn decoder(&mut self) -> Inward<U> {
        Inward(PhantomData)
    }
}

/// Writes messages.
#[derive(Debug)]
pub struct Outward<T>(PhantomData<T>);

impl<T: Message> Encoder for Outward<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // Its exact length: a buffer that grows field by field doubles.
        buffer.reserve(message.encoded_len());
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        at_rest()
    }
}

/// Reads messages.
#[derive(Debug)]
pub struct Inward<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for Inward<U> {
    type Item = U;
    type Error = Status;

    /// Reads a message from a copy of its bytes. Were it a slice of the stream's buffer, the buffer could not be used
    /// again while the message lives, and the stream would allocate another, twice as large.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let mut bytes = Vec::with_capacity(buffer.remaining());
        bytes.put(buffer);
        let read = U::decode(Bytes::from(bytes));
        read.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        at_rest()
    }
}

/// Small messages travel together, a part of a long one alone.
fn at_rest() -> BufferSettings {
    BufferSettings::new(AT_REST, PART)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tokio_stream::{StreamExt as _, iter};
    use tonic::Streaming;
    use tonic::codec::{Codec as _, EncodeBody};

    use super::*;
    use crate::proto::Part;
    use crate::{MAX_SAID, parts};

    fn sent(messages: Vec<Part>) -> Body {
        let encoder = Codec::<Part, Part>::default().encoder();
        Body::new(EncodeBody::new_client(encoder, iter(messages.into_iter().map(Ok)), None, None))
    }

    #[tokio::test]
    async fn a_long_message_travels_one_part_at_a_time() {
        let message = Bytes::from(vec![7; 5 * PART + 3]);
        let pieces: Vec<Bytes> =
            sent(parts(message).collect()).into_data_stream().map(Result::unwrap).collect().await;
        assert_eq!(pieces.len(), 6);
        assert!(pieces.iter().all(|piece| piece.len() < PART + 32));
    }

    #[tokio::test]
    async fn messages_are_read_as_they_were_written() {
        let messages: Vec<Part> =
            [0, 1, 100, PART, 1].map(|len| Part { total: 1, data: vec![9; len].into() }).into();
        let decoder = Codec::<Part, Part>::default().decoder();
        let read = Streaming::new_request(decoder, sent(messages.clone()), None, Some(MAX_SAID));
        assert_eq!(read.map(Result::unwrap).collect::<Vec<_>>().await, messages);
        let long = vec![Part { total: 1, data: vec![9; MAX_SAID].into() }];
        let mut refused = Streaming::new_request(
            Codec::<Part, Part>::default().decoder(),
            sent(long),
            None,
            Some(MAX_SAID),
        );
        assert_eq!(refused.message().await.unwrap_err().code(), tonic::Code::OutOfRange);
    }
}
