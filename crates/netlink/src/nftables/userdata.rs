//! User data: what the kernel keeps for us without reading it. Comments, and hints for `nft list`.
//!
//! A list of one byte type, one byte length, value; at most 256 bytes per object.

use crate::attributes::text;
use crate::buffer::Buffer;

/// `NFT_USERDATA_MAXLEN`
const CAPACITY: usize = 256;
/// Comments of everything but sets.
pub(super) const COMMENT: u8 = 0;
/// Ours: a fingerprint of what a rule was made from. `nft` leaves out what it doesn't know.
pub(super) const FINGERPRINT: u8 = 200;

/// User data being collected on the stack. What doesn't fit is left out, but a comment is cut to fit.
#[derive(Debug)]
pub(super) struct Userdata {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl Userdata {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; CAPACITY], length: 0 }
    }

    pub(super) fn put(&mut self, kind: u8, value: &[u8]) {
        self.put_parts(kind, &[value]);
    }

    fn put_parts(&mut self, kind: u8, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let end = self.length + 2 + length;
        let entry = self.bytes.get_mut(self.length..end).zip(u8::try_from(length).ok());
        if let Some(([kind_slot, length_slot, value @ ..], length)) = entry {
            *kind_slot = kind;
            *length_slot = length;
            let bytes = parts.iter().copied().flatten();
            value.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
            self.length = end;
        }
    }

    /// Host order, as `nft` on the same machine reads it.
    pub(super) fn put_u32(&mut self, kind: u8, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Ends at the first NUL, if there is one, since a reader would.
    pub(super) fn put_comment(&mut self, kind: u8, comment: &str) {
        let room = CAPACITY.saturating_sub(self.length + 3);
        let comment = text(comment.as_bytes()).unwrap_or_default();
        let cut = comment.floor_char_boundary(room);
        let (comment, _) = comment.split_at(cut);
        self.put_parts(kind, &[comment.as_bytes(), &[0]]);
    }

    pub(super) fn nest(&mut self, kind: u8, body: impl FnOnce(&mut Self)) {
        let mut inner = Self::new();
        body(&mut inner);
        self.put(kind, inner.as_bytes());
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Nothing to say is said by leaving the attribute out.
    pub(super) fn write(&self, buffer: &mut Buffer, attribute: u16) {
        if self.length > 0 {
            buffer.bytes(attribute, self.as_bytes());
        }
    }
}

/// User data of an object that has nothing but a comment.
pub(super) fn comment(comment: Option<&str>) -> Userdata {
    let mut userdata = Userdata::new();
    if let Some(comment) = comment {
        userdata.put_comment(COMMENT, comment);
    }
    userdata
}

/// The value of the first entry of that type.
pub(super) fn find(mut bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    while let [kind, length, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*length))?;
        if *kind == wanted {
            return Some(value);
        }
        bytes = rest.get(usize::from(*length)..)?;
    }
    None
}

pub(super) fn find_comment(bytes: &[u8], kind: u8) -> Option<&str> {
    find(bytes, kind).and_then(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_comment_too_long_is_cut_between_characters() {
        let mut userdata = Userdata::new();
        userdata.put_comment(COMMENT, &"ü".repeat(200));
        assert_eq!(find_comment(userdata.as_bytes(), COMMENT), Some(&*"ü".repeat(126)));
    }

    proptest! {
        #[test]
        fn what_fits_reads_back(text in "[^\0]{0,60}", fingerprint: u64) {
            let mut userdata = Userdata::new();
            userdata.put(FINGERPRINT, &fingerprint.to_be_bytes());
            userdata.put_comment(COMMENT, &text);
            prop_assert_eq!(find(userdata.as_bytes(), FINGERPRINT), Some(&fingerprint.to_be_bytes()[..]));
            prop_assert_eq!(find_comment(userdata.as_bytes(), COMMENT), Some(&*text));
        }

        #[test]
        fn no_comment_makes_it_panic_or_overflow(text in ".{0,400}") {
            let mut userdata = Userdata::new();
            userdata.put_comment(COMMENT, &text);
            prop_assert!(userdata.as_bytes().len() <= CAPACITY);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), kind: u8) {
            let _ = find(&bytes, kind);
        }
    }
}
