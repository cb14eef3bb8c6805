//! Whatever bytes come from a netlink socket, reading them must not panic.
//!
//! `cargo +nightly fuzz run netlink_decode`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netlink::decode_all(bytes));
