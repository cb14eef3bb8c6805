//! Splits the body of a watch into lines while it arrives.

use bytes::{Bytes, BytesMut};

/// No object comes near this: etcd refuses objects of more than a few MiB.
const MAX_LINE: usize = 64 << 20;

/// Bytes that have arrived and belong to no complete line yet. What follows the last newline of a body is dropped with it.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// The buffer has no newline before this.
    searched: usize,
}

/// The line grew beyond what any object needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineTooLong;

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line with its newline, or `None` until more bytes arrive.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        let unseen = self.buffer.get(self.searched..).unwrap_or_default();
        if let Some(end) = unseen.iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(self.searched + end + 1);
            self.searched = 0;
            return Ok(Some(line.freeze()));
        }
        self.searched = self.buffer.len();
        if self.searched > MAX_LINE { Err(LineTooLong) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut lines = Lines::default();
        let chunk = vec![b' '; 1 << 20];
        let accepted = (0..1000).take_while(|_| {
            lines.push(&chunk);
            lines.next().is_ok()
        });
        assert_eq!(accepted.count(), MAX_LINE >> 20);
    }
}
