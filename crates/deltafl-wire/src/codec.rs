//! A gRPC codec with small buffers.
//!
//! A server keeps a stream for every connected device, and most streams are idle. The memory per
//! stream therefore matters: this codec keeps at most one message fragment in each direction.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::FRAGMENT;

/// The initial buffer size of a stream, in bytes.
const AT_REST: usize = 512;

/// Encodes `T` and decodes `U` as Protocol Buffers in gRPC frames.
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
        // The exact length: a buffer that grows field by field doubles.
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

    /// Decodes a message from a copy of its bytes.
    ///
    /// A slice of the stream's buffer would keep that buffer alive as long as the message. The
    /// stream would then allocate a second buffer, twice as large.
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

/// Returns settings that batch small messages and send each fragment on its own.
fn at_rest() -> BufferSettings {
    BufferSettings::new(AT_REST, FRAGMENT)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tokio_stream::{StreamExt as _, iter};
    use tonic::Streaming;
    use tonic::codec::{Codec as _, EncodeBody};

    use super::*;
    use crate::proto::Part;
    use crate::{MAX_DEVICE_MESSAGE, fragments};

    fn sent(messages: Vec<Part>) -> Body {
        let encoder = Codec::<Part, Part>::default().encoder();
        Body::new(EncodeBody::new_client(encoder, iter(messages.into_iter().map(Ok)), None, None))
    }

    #[tokio::test]
    async fn a_long_message_travels_one_part_at_a_time() {
        let message = Bytes::from(vec![7; 5 * FRAGMENT + 3]);
        let pieces: Vec<Bytes> =
            sent(fragments(message).collect()).into_data_stream().map(Result::unwrap).collect().await;
        assert_eq!(pieces.len(), 6);
        assert!(pieces.iter().all(|piece| piece.len() < FRAGMENT + 32));
    }

    #[tokio::test]
    async fn messages_are_read_as_they_were_written() {
        let messages: Vec<Part> =
            [0, 1, 100, FRAGMENT, 1].map(|len| Part { total: 1, data: vec![9; len].into() }).into();
        let decoder = Codec::<Part, Part>::default().decoder();
        let read = Streaming::new_request(decoder, sent(messages.clone()), None, Some(MAX_DEVICE_MESSAGE));
        assert_eq!(read.map(Result::unwrap).collect::<Vec<_>>().await, messages);
        let long = vec![Part { total: 1, data: vec![9; MAX_DEVICE_MESSAGE].into() }];
        let mut refused = Streaming::new_request(
            Codec::<Part, Part>::default().decoder(),
            sent(long),
            None,
            Some(MAX_DEVICE_MESSAGE),
        );
        assert_eq!(refused.message().await.unwrap_err().code(), tonic::Code::OutOfRange);
    }
}
