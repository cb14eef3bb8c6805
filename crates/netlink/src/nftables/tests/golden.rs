//! Bytes as `nft` 1.0.6 sends them, on a little-endian machine.
#![cfg(target_endian = "little")]

use std::time::Duration;

use crate::Family::{self, Ipv4, Ipv6};
use crate::nftables::value::hex;
use crate::nftables::*;

fn batch(family: Family, write: impl FnOnce(&mut Batch)) -> Vec<u8> {
    let mut batch = Batch::new(family, "kube-proxy");
    write(&mut batch);
    batch.as_bytes().to_vec()
}

/// Sequence numbers depend on what else is in the batch.
fn without_sequence(mut message: Vec<u8>) -> Vec<u8> {
    message[8..12].fill(0);
    message
}

#[track_caller]
fn assert_bytes(written: Vec<u8>, want: &str) {
    let want: Vec<_> = want.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap()).collect();
    let want = want.into_iter().map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    assert_eq!(hex(&without_sequence(written)), hex(&without_sequence(want)));
}

#[track_caller]
fn assert_written(write: impl FnOnce(&mut Batch), want: &str) {
    assert_bytes(batch(Ipv4, write), want);
}

fn word(value: u32) -> Value {
    value.to_ne_bytes().into()
}

const R1: Register = Register::FIRST;

#[test]
fn a_batch_begins_and_ends() {
    assert_bytes(Batch::begin(None).as_bytes().to_vec(), "140000001000010000000000000000000000000a");
    assert_bytes(
        Batch::begin(Some(7)).as_bytes().to_vec(),
        "1c0000001000010000000000000000000000000a0800010000000007",
    );
    let mut batch = Batch::new(Ipv4, "kube-proxy");
    for chain in ["a", "b", "c"] {
        batch.delete_chain(chain);
    }
    assert_eq!(
        batch.end().as_bytes(),
        [20, 0, 0, 0, 0x11, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10],
        "the number after the last message's"
    );
}

#[test]
fn a_table_with_a_comment() {
    assert_written(
        |batch| {
            batch.add_table(&Table { ownership: Ownership::Shared, comment: Some("rules for kube-proxy") });
        },
        "48000000000a01000100000000000000020000000f0001006b7562652d70726f7879000008000200000000001b000600001572756c657320666f72206b7562652d70726f78790000",
    );
}

#[test]
fn a_base_chain() {
    let hook = Hook { kind: ChainKind::Nat, point: HookPoint::Prerouting, priority: -100, policy: None };
    assert_written(
        |batch| batch.add_chain(&Chain { name: "nat-prerouting", hook: Some(hook), comment: None }),
        "54000000030a01040200000000000000020000000f0001006b7562652d70726f78790000130003006e61742d707265726f7574696e670000080007006e61740014000480080001000000000008000200ffffff9c",
    );
}

#[test]
fn a_base_chain_with_policy_and_comment() {
    let hook =
        Hook { kind: ChainKind::Filter, point: HookPoint::Input, priority: 0, policy: Some(Policy::Drop) };
    assert_bytes(
        batch(Ipv6, |batch| batch.add_chain(&Chain { name: "c", hook: Some(hook), comment: Some("x") })),
        "5c000000030a010400000000000000000a0000000f0001006b7562652d70726f7879000006000300630000000b00070066696c7465720000080005000000000014000480080001000000000108000200000000000800 0c0000027800".replace(' ', "").as_str(),
    );
}

#[test]
fn a_plain_set() {
    assert_written(
        |batch| {
            batch.add_set(&Set {
                comment: Some("Active ClusterIPs"),
                ..Set::new("cluster-ips", &[Field::Ipv4Address])
            });
        },
        "74000000090a01040300000000000000020000000f0001006b7562652d70726f7879000010000200636c75737465722d6970730008000300000000000800040000000007080005000000000408000a00000000011e000d00000402000000071241637469766520436c7573746572495073000000",
    );
}

#[test]
fn a_rule_that_jumps() {
    assert_written(
        |batch| {
            batch.add_rule(&Rule {
                chain: "nat-postrouting",
                expressions: &[Expression::Verdict(Verdict::Jump("masquerading"))],
                comment: None,
                fingerprint: None,
            });
        },
        "80000000060a010c3400000000000000020000000f0001006b7562652d70726f78790000140002006e61742d706f7374726f7574696e670048000480440001800e000100696d6d656469617465000000300002800800010000000000240002802000028008000100fffffffd110002006d6173717565726164696e6700000000",
    );
}

#[test]
fn a_rule_that_clears_the_mark_and_masquerades() {
    let bitwise = |mask, xor| Expression::Bitwise { from: R1, to: R1, mask: word(mask), xor: word(xor) };
    assert_written(
        |batch| {
            batch.add_rule(&Rule {
                chain: "masquerading",
                expressions: &[
                    Expression::Meta { key: MetaKey::Mark, to: R1 },
                    bitwise(0x4000, 0),
                    Expression::Compare { from: R1, comparison: Comparison::NotEqual, value: word(0) },
                    Expression::Meta { key: MetaKey::Mark, to: R1 },
                    bitwise(0xffff_ffff, 0x4000),
                    Expression::SetMeta { key: MetaKey::Mark, from: R1 },
                    Expression::Masquerade { flags: NatFlags::FullyRandom },
                ],
                comment: None,
                fingerprint: None,
            });
        },
        "88010000060a010c3a00000000000000020000000f0001006b7562652d70726f78790000110002006d6173717565726164696e67000000005001048024000180090001006d6574610000000014000280080002000000000308000100000000014c0001800c00010062697477697365003c00028008000100000000010800020000000001080006000000000008000300000000040c00048008000100004000000c00058008000100000000002c00018008000100636d700020000280080001000000000108000200000000010c000380080001000000000024000180090001006d6574610000000014000280080002000000000308000100000000014c0001800c00010062697477697365003c00028008000100000000010800020000000001080006000000000008000300000000040c00048008000100ffffffff0c000580080001000040000024000180090001006d6574610000000014000280080002000000000308000300000000011c000180090001006d617371000000000c0002800800010000000010",
    );
}

#[test]
fn an_element_with_a_verdict() {
    let key = Value::concatenation(&[&[172, 30, 0, 42], &[6], &80_u16.to_be_bytes()]);
    let verdict = Verdict::Goto("service-42NFTM6N-ns2/svc2/tcp/p80");
    let element = Element { data: Some(Datum::Verdict(verdict)), ..Element::new(key) };
    assert_written(
        |batch| batch.add_elements(SetRef { name: "service-ips", id: Some(7) }, [element]),
        "900000000c0a01045800000000000000020000000f0001006b7562652d70726f7879000010000200736572766963652d69707300080004000000000754000380500001801400018010000100ac1e002a0600000000500000380002803400028008000100fffffffc26000200736572766963652d34324e46544d364e2d6e73322f737663322f7463702f703830000000",
    );
}

#[test]
fn a_rule_that_chooses_at_random_from_a_map() {
    let map = SetRef { name: "__map%d", id: Some(10) };
    assert_written(
        |batch| {
            batch.add_rule(&Rule {
                chain: "service-42NFTM6N-ns2/svc2/tcp/p80",
                expressions: &[
                    Expression::Meta { key: MetaKey::L4Protocol, to: R1 },
                    Expression::Compare { from: R1, comparison: Comparison::Equal, value: [6].into() },
                    Expression::Numgen { generator: NumberGenerator::Random, modulus: 2, offset: 0, to: R1 },
                    Expression::LookupData { map, key: R1, to: R1 },
                    Expression::Nat {
                        kind: NatKind::Destination,
                        family: Ipv4,
                        address: R1,
                        port: Some(Register::at(1)),
                        flags: NatFlags::None,
                    },
                ],
                comment: None,
                fingerprint: None,
            });
        },
        "3c010000060a010c6800000000000000020000000f0001006b7562652d70726f7879000026000200736572766963652d34324e46544d364e2d6e73322f737663322f7463702f703830000000f000048024000180090001006d6574610000000014000280080002000000001008000100000000012c00018008000100636d700020000280080001000000000108000200000000000c0003800500010006000000340001800b0001006e756d67656e0000240002800800010000000001080002000000000208000300000000010800040000000000380001800b0001006c6f6f6b7570000028000280080002000000000108000300000000010c0001005f5f6d6170256400080004000000000a30000180080001006e617400240002800800010000000001080002000000000208000300000000010800050000000009",
    );
}

/// `map endpoints { typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport; counter; }`
#[test]
fn a_map_that_is_declared_by_expressions() {
    let key = [Field::Ipv4Address, Field::Protocol, Field::Port, Field::Index { modulus: 65536 }];
    assert_written(
        |batch| {
            batch.add_set(&Set {
                data: Some(MapData::Fields(&[Field::Ipv4Address, Field::Port])),
                counter: true,
                comment: Some("slots"),
                ..Set::new("endpoints", &key)
            });
        },
        &[
            "30010000090a01040500000000000000020000000f0001006b7562652d70726f787900000e000200656e64706f696e7473000000",
            "08000300000000080800040000 1cc344080005000000001008000600000001cd080007000000000808000a00000000 01",
            "b6000d00000400000000010400000000036000040d00000001580014000407000000010c00040c00000001040c000000010e00040900000001060004100000000214000407000000010c00040b000000010402000000031a0004170000000112000401000000010400000100020400000000043400040d000000012c0014000407000000010c00040c00000001040c0000000114000407000000010c00040b0000000104020000000604000000000706736c6f747300",
            "0000",
            "140011800c000100636f756e7465720004000280",
        ]
        .concat()
        .replace(' ', ""),
    );
}

#[test]
fn an_interval_set_of_concatenations() {
    let key = [Field::Ipv4Address, Field::Protocol, Field::Port, Field::Ipv4Address];
    let written = batch(Ipv4, |batch| {
        batch.add_set(&Set { interval: true, ..Set::new("allowed-sources", &key) });
    });
    let description = "38000980340002800c00018008000100000000040c00018008000100000000010c00018008000100000000020c0001800800010000000004";
    let written = hex(&written).replace(' ', "");
    assert!(written.contains(description), "{written}");
    assert!(written.contains("0800030000000084"), "flags: {written}");
}

#[test]
fn an_element_that_is_a_range() {
    let key =
        |last| Value::concatenation(&[&[10, 0, 0, 1], &[6], &80_u16.to_be_bytes(), &[192, 168, 0, last]]);
    let element = Element { key_end: Some(key(255)), ..Element::new(key(0)) };
    assert_written(
        |batch| batch.add_elements(SetRef { name: "allowed-sources", id: Some(5) }, [element]),
        "780000000c0a01040b00000000000000020000000f0001006b7562652d70726f7879000014000200616c6c6f7765642d736f7572636573000800040000000005380003803400018018000180140001000a0000010600000000500000c0a8000018000a80140001000a0000010600000000500000c0a800ff",
    );
}

#[test]
fn elements_of_an_interval_map_with_a_comment() {
    let address = |last| {
        let mut octets = [0; 16];
        octets[15] = last;
        octets
    };
    let mut data = address(1);
    data[0] = 0xfd;
    let end = |last| Element { interval_end: true, ..Element::new(address(last)) };
    let start = Element { comment: Some("hello"), ..Element::pair(address(1), data) };
    // `nft` numbers list entries; the kernel doesn't care, and ours are all 1.
    let numbered = "c00000000c0a010400000000000000000a0000000f0001006b7562652d70726f78790000060002006100000008000400000000068c000380240001800800030000000001180001801400010000000000000000000000000000000000400002801800018014000100000000000000000000000000000000011800028014000100fd0000000000000000000000000000010c000600000668656c6c6f00240003800800030000000001180001801400010000000000000000000000000000000002";
    let want = numbered
        .replace("40000280180001801400", "40000180180001801400")
        .replace("240003800800030000000001", "240001800800030000000001");
    assert_bytes(
        batch(Ipv6, |batch| {
            batch.add_elements(SetRef { name: "a", id: Some(6) }, [end(0), start, end(2)]);
        }),
        &want,
    );
}

#[test]
fn a_rule_that_updates_a_set_with_timeout_and_counter() {
    assert_bytes(
        batch(Ipv6, |batch| {
            batch.add_rule(&Rule {
                chain: "c",
                expressions: &[
                    Expression::source_address(Ipv6, R1),
                    Expression::Dynamic {
                        operation: DynamicOperation::Update,
                        set: SetRef { name: "d", id: Some(7) },
                        key: R1,
                        data: None,
                        timeout: Some(Duration::from_secs(7)),
                        with: &[Expression::Counter],
                    },
                ],
                comment: None,
                fingerprint: None,
            });
        }),
        "b8000000060a010c00000000000000000a0000000f0001006b7562652d70726f787900000600020063000000 8c000480340001800c0001007061796c6f616400240002800800010000000001080002000000000108000300000000080800040000000010540001800b00010064796e736574000044000280080004000000000108000300000000010c0006000000000000001b5806000100640000000800020000000007140007800c000100636f756e7465720004000280".replace(' ', "").as_str(),
    );
}
