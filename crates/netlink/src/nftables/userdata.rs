//! User data, which the kernel stores without interpreting it: comments, and types for `nft list`.
//!
//! A list of entries: one byte type, one byte length, value. At most 256 bytes per object.

use crate::attributes::text;
use crate::buffer::Buffer;

/// `NFT_USERDATA_MAXLEN`
const CAPACITY: usize = 256;
/// The comment of any object but a set.
pub(super) const COMMENT: u8 = 0;
/// The fingerprint of a rule, a type of our own. `nft` ignores unknown types.
pub(super) const FINGERPRINT: u8 = 200;

/// Encodes user data on the stack. Entries that do not fit are left out, but a comment is truncated.
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

    /// In host byte order, as `nft` does.
    pub(super) fn put_u32(&mut self, kind: u8, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Ends at the first NUL, like a reader.
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

    /// Appends the attribute unless it would be empty.
    pub(super) fn write(&self, buffer: &mut Buffer, attribute: u16) {
        if self.length > 0 {
            buffer.bytes(attribute, self.as_bytes());
        }
    }
}

/// User data with at most a comment.
pub(super) fn comment(comment: Option<&str>) -> Userdata {
    let mut userdata = Userdata::new();
    if let Some(comment) = comment {
        userdata.put_comment(COMMENT, comment);
    }
    userdata
}

/// The value of the first entry of this type.
pub(super) fn find(mut bytes: &[u8], searched: u8) -> Option<&[u8]> {
    while let [kind, length, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*length))?;
        if *kind == searched {
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
    fn a_long_comment_is_truncated_between_characters() {
        let mut userdata = Userdata::new();
        userdata.put_comment(COMMENT, &"ü".repeat(200));
        assert_eq!(find_comment(userdata.as_bytes(), COMMENT), Some(&*"ü".repeat(126)));
    }

    proptest! {
        #[test]
        fn entries_are_read_as_written(text in "[^\0]{0,60}", fingerprint: u64) {
            let mut userdata = Userdata::new();
            userdata.put(FINGERPRINT, &fingerprint.to_be_bytes());
            userdata.put_comment(COMMENT, &text);
            prop_assert_eq!(find(userdata.as_bytes(), FINGERPRINT), Some(&fingerprint.to_be_bytes()[..]));
            prop_assert_eq!(find_comment(userdata.as_bytes(), COMMENT), Some(&*text));
        }

        #[test]
        fn long_comments_do_not_overflow(text in ".{0,400}") {
            let mut userdata = Userdata::new();
            userdata.put_comment(COMMENT, &text);
            prop_assert!(userdata.as_bytes().len() <= CAPACITY);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), kind: u8) {
            let _ = find(&bytes, kind);
        }
    }
}
