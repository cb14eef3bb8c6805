//! The constants of nf_tables, by the names of the kernel.
//!
//! Integers in attributes are big-endian. The bytes in `NFTA_DATA_VALUE` are in the order of the packet path: network byte
//! order for addresses and ports, host byte order for marks, `ct` state and status, `fib` types and `numgen` results.

// include/uapi/linux/netfilter/nfnetlink.h
pub(super) const NFNLGRP_NFTABLES: u32 = 7;
pub(super) const NFNL_SUBSYS_NFTABLES: u8 = 10;
pub(super) const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub(super) const NFNL_MSG_BATCH_END: u16 = 0x11;
pub(super) const NFNL_BATCH_GENID: u16 = 1;

// include/uapi/linux/netfilter/nf_tables.h
pub(super) const NFT_MSG_NEWTABLE: u8 = 0;
pub(super) const NFT_MSG_GETTABLE: u8 = 1;
pub(super) const NFT_MSG_DELTABLE: u8 = 2;
pub(super) const NFT_MSG_NEWCHAIN: u8 = 3;
pub(super) const NFT_MSG_GETCHAIN: u8 = 4;
pub(super) const NFT_MSG_DELCHAIN: u8 = 5;
pub(super) const NFT_MSG_NEWRULE: u8 = 6;
pub(super) const NFT_MSG_GETRULE: u8 = 7;
pub(super) const NFT_MSG_DELRULE: u8 = 8;
pub(super) const NFT_MSG_NEWSET: u8 = 9;
pub(super) const NFT_MSG_GETSET: u8 = 10;
pub(super) const NFT_MSG_DELSET: u8 = 11;
pub(super) const NFT_MSG_NEWSETELEM: u8 = 12;
pub(super) const NFT_MSG_GETSETELEM: u8 = 13;
pub(super) const NFT_MSG_DELSETELEM: u8 = 14;
pub(super) const NFT_MSG_NEWGEN: u8 = 15;
pub(super) const NFT_MSG_GETGEN: u8 = 16;
pub(super) const NFT_MSG_NEWOBJ: u8 = 18;
pub(super) const NFT_MSG_DELOBJ: u8 = 20;
pub(super) const NFT_MSG_NEWFLOWTABLE: u8 = 22;
pub(super) const NFT_MSG_DELFLOWTABLE: u8 = 24;

pub(super) const NFTA_LIST_ELEM: u16 = 1;

pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_TABLE_FLAGS: u16 = 2;
pub(super) const NFTA_TABLE_HANDLE: u16 = 4;
pub(super) const NFTA_TABLE_USERDATA: u16 = 6;
pub(super) const NFTA_TABLE_OWNER: u16 = 7;
pub(super) const NFT_TABLE_F_OWNER: u32 = 0x2;
pub(super) const NFT_TABLE_F_PERSIST: u32 = 0x4;

/// The table of a chain, rule, set or list of elements: the same number for all of them.
pub(super) const NFTA_TABLE: u16 = 1;

pub(super) const NFTA_CHAIN_HANDLE: u16 = 2;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_CHAIN_USERDATA: u16 = 12;
pub(super) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;

pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_HANDLE: u16 = 3;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(super) const NFTA_RULE_USERDATA: u16 = 7;

pub(super) const NFTA_SET_NAME: u16 = 2;
pub(super) const NFTA_SET_FLAGS: u16 = 3;
pub(super) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(super) const NFTA_SET_KEY_LEN: u16 = 5;
pub(super) const NFTA_SET_DATA_TYPE: u16 = 6;
pub(super) const NFTA_SET_DATA_LEN: u16 = 7;
pub(super) const NFTA_SET_DESC: u16 = 9;
pub(super) const NFTA_SET_ID: u16 = 10;
pub(super) const NFTA_SET_TIMEOUT: u16 = 11;
pub(super) const NFTA_SET_USERDATA: u16 = 13;
pub(super) const NFTA_SET_HANDLE: u16 = 16;
pub(super) const NFTA_SET_EXPR: u16 = 17;
pub(super) const NFTA_SET_EXPRESSIONS: u16 = 18;
pub(super) const NFTA_SET_COUNT: u16 = 20;
pub(super) const NFTA_SET_DESC_SIZE: u16 = 1;
pub(super) const NFTA_SET_DESC_CONCAT: u16 = 2;
pub(super) const NFTA_SET_FIELD_LEN: u16 = 1;
pub(super) const NFT_SET_INTERVAL: u32 = 0x4;
pub(super) const NFT_SET_MAP: u32 = 0x8;
pub(super) const NFT_SET_TIMEOUT: u32 = 0x10;
pub(super) const NFT_SET_EVAL: u32 = 0x20;
pub(super) const NFT_SET_CONCAT: u32 = 0x80;
/// The data type of maps whose data are verdicts.
pub(super) const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_SET_ELEM_LIST_SET_ID: u16 = 4;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(super) const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
pub(super) const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(super) const NFTA_SET_ELEM_EXPR: u16 = 7;
pub(super) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(super) const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;
pub(super) const NFT_SET_ELEM_INTERVAL_END: u32 = 1;

pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;

pub(super) const NFTA_EXPR_NAME: u16 = 1;
pub(super) const NFTA_EXPR_DATA: u16 = 2;

/// The register that holds the verdict.
pub(super) const NFT_REG_VERDICT: u32 = 0;

pub(super) const NFTA_META_DREG: u16 = 1;
pub(super) const NFTA_META_KEY: u16 = 2;
pub(super) const NFTA_META_SREG: u16 = 3;

pub(super) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(super) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(super) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(super) const NFTA_PAYLOAD_LEN: u16 = 4;

pub(super) const NFTA_CT_DREG: u16 = 1;
pub(super) const NFTA_CT_KEY: u16 = 2;
pub(super) const NFTA_CT_DIRECTION: u16 = 3;

pub(super) const NFTA_FIB_DREG: u16 = 1;
pub(super) const NFTA_FIB_RESULT: u16 = 2;
pub(super) const NFTA_FIB_FLAGS: u16 = 3;
pub(super) const NFTA_FIB_F_SADDR: u32 = 1;
pub(super) const NFTA_FIB_F_DADDR: u32 = 2;

pub(super) const NFTA_HASH_SREG: u16 = 1;
pub(super) const NFTA_HASH_DREG: u16 = 2;
pub(super) const NFTA_HASH_LEN: u16 = 3;
pub(super) const NFTA_HASH_MODULUS: u16 = 4;
pub(super) const NFTA_HASH_SEED: u16 = 5;
pub(super) const NFTA_HASH_OFFSET: u16 = 6;
pub(super) const NFTA_HASH_TYPE: u16 = 7;
pub(super) const NFT_HASH_JENKINS: u32 = 0;

pub(super) const NFTA_NG_DREG: u16 = 1;
pub(super) const NFTA_NG_MODULUS: u16 = 2;
pub(super) const NFTA_NG_TYPE: u16 = 3;
pub(super) const NFTA_NG_OFFSET: u16 = 4;

pub(super) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(super) const NFTA_IMMEDIATE_DATA: u16 = 2;

pub(super) const NFTA_BITWISE_SREG: u16 = 1;
pub(super) const NFTA_BITWISE_DREG: u16 = 2;
pub(super) const NFTA_BITWISE_LEN: u16 = 3;
pub(super) const NFTA_BITWISE_MASK: u16 = 4;
pub(super) const NFTA_BITWISE_XOR: u16 = 5;
pub(super) const NFTA_BITWISE_OP: u16 = 6;
pub(super) const NFT_BITWISE_MASK_XOR: u32 = 0;

pub(super) const NFTA_CMP_SREG: u16 = 1;
pub(super) const NFTA_CMP_OP: u16 = 2;
pub(super) const NFTA_CMP_DATA: u16 = 3;

pub(super) const NFTA_LOOKUP_SET: u16 = 1;
pub(super) const NFTA_LOOKUP_SREG: u16 = 2;
pub(super) const NFTA_LOOKUP_DREG: u16 = 3;
pub(super) const NFTA_LOOKUP_SET_ID: u16 = 4;
pub(super) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(super) const NFT_LOOKUP_F_INV: u32 = 1;

pub(super) const NFTA_DYNSET_SET_NAME: u16 = 1;
pub(super) const NFTA_DYNSET_SET_ID: u16 = 2;
pub(super) const NFTA_DYNSET_OP: u16 = 3;
pub(super) const NFTA_DYNSET_SREG_KEY: u16 = 4;
pub(super) const NFTA_DYNSET_SREG_DATA: u16 = 5;
pub(super) const NFTA_DYNSET_TIMEOUT: u16 = 6;
pub(super) const NFTA_DYNSET_EXPR: u16 = 7;
pub(super) const NFTA_DYNSET_FLAGS: u16 = 9;
pub(super) const NFTA_DYNSET_EXPRESSIONS: u16 = 11;
pub(super) const NFT_DYNSET_F_EXPR: u32 = 2;

pub(super) const NFTA_NAT_TYPE: u16 = 1;
pub(super) const NFTA_NAT_FAMILY: u16 = 2;
pub(super) const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub(super) const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub(super) const NFTA_NAT_FLAGS: u16 = 7;

pub(super) const NFTA_MASQ_FLAGS: u16 = 1;

pub(super) const NFTA_REJECT_TYPE: u16 = 1;
pub(super) const NFTA_REJECT_ICMP_CODE: u16 = 2;
pub(super) const NFT_REJECT_ICMP_UNREACH: u32 = 0;

pub(super) const NFTA_COUNTER_BYTES: u16 = 1;
pub(super) const NFTA_COUNTER_PACKETS: u16 = 2;

pub(super) const NFTA_GEN_ID: u16 = 1;
pub(super) const NFTA_GEN_PROC_PID: u16 = 2;
pub(super) const NFTA_GEN_PROC_NAME: u16 = 3;

/// The high byte of a message kind is the number of the subsystem.
pub(super) const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_NFTABLES, message])
}

/// The message number, if the kind is of nf_tables.
pub(super) const fn message_of(kind: u16) -> Option<u8> {
    match kind.to_be_bytes() {
        [NFNL_SUBSYS_NFTABLES, message] => Some(message),
        _ => None,
    }
}

/// The size of `struct nfgenmsg`: family, version, resource.
pub(super) const FIXED: usize = 4;

pub(super) const fn fixed(family: u8) -> [u8; FIXED] {
    [family, 0, 0, 0]
}
