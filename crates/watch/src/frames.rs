//! Splits the body of a watch into its events while it arrives: lines of JSON, or frames of protobuf with their length in
//! front.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::wire::{MAX_OBJECT, Undecodable, Wire};

/// Bytes that have arrived and belong to no complete event yet. What follows the last event of a body is dropped with it.
#[derive(Debug)]
pub(crate) struct Frames {
    wire: Wire,
    buffer: BytesMut,
    /// The buffer has no newline before this.
    searched: usize,
}

impl Frames {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, buffer: BytesMut::new(), searched: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete event, or `None` until more bytes arrive.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Undecodable> {
        match self.wire {
            Wire::Json => self.next_line(),
            Wire::Protobuf => self.next_frame(),
        }
    }

    fn next_line(&mut self) -> Result<Option<Bytes>, Undecodable> {
        let unseen = self.buffer.get(self.searched..).unwrap_or_default();
        if let Some(end) = unseen.iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(self.searched + end + 1);
            self.searched = 0;
            return Ok(Some(line.freeze()));
        }
        self.searched = self.buffer.len();
        if self.searched > MAX_OBJECT { Err(Undecodable::TooLong) } else { Ok(None) }
    }

    /// The length has four bytes, the highest first (`k8s.io/apimachinery/pkg/util/framer`).
    fn next_frame(&mut self) -> Result<Option<Bytes>, Undecodable> {
        let Some(length) = self.buffer.first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_OBJECT {
            return Err(Undecodable::TooLong);
        }
        if self.buffer.len() < size_of::<u32>() + length {
            return Ok(None);
        }
        self.buffer.advance(size_of::<u32>());
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut frames = Frames::new(Wire::Json);
        let chunk = vec![b' '; 1 << 20];
        let accepted = (0..1000).take_while(|_| {
            frames.push(&chunk);
            frames.next().is_ok()
        });
        assert_eq!(accepted.count(), MAX_OBJECT >> 20);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_arrives() {
        for (length, is_accepted) in [(0, true), (MAX_OBJECT, true), (MAX_OBJECT + 1, false)] {
            let mut frames = Frames::new(Wire::Protobuf);
            frames.push(&u32::try_from(length).unwrap().to_be_bytes());
            assert_eq!(frames.next().is_ok(), is_accepted, "{length}");
        }
    }

    #[test]
    fn a_frame_may_be_empty_and_may_arrive_with_others() {
        let mut frames = Frames::new(Wire::Protobuf);
        frames.push(b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c\0\0");
        let found: Vec<_> = std::iter::from_fn(|| frames.next().unwrap()).collect();
        assert_eq!(found, [&b"ab"[..], b"", b"c"]);
    }
}
