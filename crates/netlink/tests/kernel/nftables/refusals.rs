//! Errors of rejected batches.

use netlink::Family::Ipv4;
use netlink::nftables::*;
use netlink::testing::in_fresh_netns;

use super::program::*;
use super::table_with;

#[track_caller]
pub(super) fn refusal(result: Result<(), CommitError>) -> (String, String, i32) {
    let error = result.unwrap_err();
    let CommitError::Refused { object, message, errno } = error else { panic!("{error:?}") };
    (object, message, errno.raw_os_error().unwrap())
}

#[test]
fn an_error_names_one_of_thousands_of_elements() {
    in_fresh_netns(|| {
        let key = [Field::Ipv4Address, Field::Protocol, Field::Port];
        let data = Some(MapData::Fields(&[Field::Mark]));
        let mut connection = table_with(&[Set { data, ..Set::new("m", &key) }]);
        let element = |number: u32, value: u32| {
            let fields: [&[u8]; 3] = [&number.to_be_bytes(), &[6], &80_u16.to_be_bytes()];
            Element::pair(Value::concatenation(&fields), value.to_ne_bytes())
        };
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_elements("m", [element(0x0a00_0bb8, 1)]);
        connection.commit(&batch).unwrap();

        batch = Batch::new(Ipv4, TABLE);
        batch.add_elements("m", (0x0a00_0000..0x0a00_1388).map(|number| element(number, 2)));
        let (object, _, errno) = refusal(connection.commit(&batch));
        assert_eq!(object, "add element ip kube-proxy m { 0a000bb8 06000000 00500000 }");
        assert_eq!(errno, 17);
        assert_eq!(connection.elements(Ipv4, TABLE, "m", |_| ()).unwrap().len(), 1, "nothing was committed");

        batch = Batch::new(Ipv4, TABLE);
        batch.delete_elements("m", [element(0x0a00_0bb8, 1), element(5, 1)]);
        let (object, _, errno) = refusal(connection.commit(&batch));
        assert_eq!(object, "delete element ip kube-proxy m { 00000005 06000000 00500000 }");
        assert_eq!(errno, 2);
    });
}

#[test]
fn an_error_names_the_object() {
    in_fresh_netns(|| {
        let mut connection = table_with(&[Set::new("s", &[Field::Mark])]);
        let mut present = Batch::new(Ipv4, TABLE);
        present.add_chain(&Chain { name: "c", hook: None, comment: None });
        connection.commit(&present).unwrap();
        let jump = [Expression::Verdict(Verdict::Jump("nowhere"))];
        let rule = |comment| Rule { chain: "c", expressions: &jump, comment, fingerprint: None };
        type Case<'a> = (&'a dyn Fn(&mut Batch), &'a str, i32);
        let cases: [Case<'_>; 8] = [
            (&|b| b.add_rule(&rule(Some("to nowhere"))), "add rule ip kube-proxy c \"to nowhere\"", 2),
            (&|b| b.add_rule(&rule(None)), "add rule ip kube-proxy c [immediate]", 2),
            (&|b| b.delete_rule("c", 99), "delete rule ip kube-proxy c handle 99", 2),
            (&|b| b.delete_chain("nowhere"), "delete chain ip kube-proxy nowhere", 2),
            (&|b| b.flush_chain("nowhere"), "delete rule ip kube-proxy nowhere", 2),
            (&|b| b.delete_set("nowhere"), "delete set ip kube-proxy nowhere", 2),
            (
                &|b| {
                    b.add_set(&Set::new("s", &[Field::Ipv6Address]));
                },
                "add set ip kube-proxy s",
                17,
            ),
            (
                &|b| b.add_elements("nowhere", [Element::new([0; 4]), Element::new([1; 4])]),
                "add element ip kube-proxy nowhere { one of 2 }",
                2,
            ),
        ];
        for (write, want, want_errno) in cases {
            let mut batch = Batch::new(Ipv4, TABLE);
            batch.add_table(&Table::default());
            write(&mut batch);
            let (object, _, errno) = refusal(connection.commit(&batch));
            assert_eq!((object.as_str(), errno), (want, want_errno));
        }

        let mut batch = Batch::new(Ipv4, "missing");
        batch.delete_table();
        let (object, _, errno) = refusal(connection.commit(&batch));
        assert_eq!((object.as_str(), errno), ("delete table ip missing", 2));
    });
}

#[test]
fn an_error_is_one_line() {
    in_fresh_netns(|| {
        let mut connection = table_with(&[]);
        let mut batch = Batch::new(Ipv4, TABLE);
        let hook = |priority| {
            Some(Hook { kind: ChainKind::Filter, point: HookPoint::Input, priority, policy: None })
        };
        batch.add_chain(&Chain { name: "c", hook: hook(0), comment: None });
        connection.commit(&batch).unwrap();
        batch = Batch::new(Ipv4, TABLE);
        batch.add_chain(&Chain { name: "c", hook: hook(5), comment: None });
        let error = connection.commit(&batch).unwrap_err();
        assert!(error.to_string().starts_with("kernel refused add chain ip kube-proxy c"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("os error 95"), "{source}");
    });
}

#[test]
fn the_first_of_many_errors_is_reported_even_if_some_are_lost() {
    in_fresh_netns(|| {
        let mut connection = table_with(&[]);
        let mut batch = Batch::new(Ipv4, TABLE);
        for number in 0..100_000 {
            batch.delete_chain(&format!("chain-{number}"));
        }
        let (object, _, errno) = refusal(connection.commit(&batch));
        assert_eq!((object.as_str(), errno), ("delete chain ip kube-proxy chain-0", 2));
        connection.generation().expect("the socket is usable afterwards");
    });
}

#[test]
fn checking_a_batch_changes_nothing() {
    in_fresh_netns(|| {
        let mut connection = NftablesSocket::open().unwrap();
        connection.check(&program(Ipv4)).unwrap();
        assert_eq!(connection.tables(Ipv4).unwrap(), []);
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.delete_table();
        assert_eq!(refusal(connection.check(&batch)).2, 2);
    });
}

#[test]
fn a_batch_for_another_generation_is_stale() {
    in_fresh_netns(|| {
        let mut connection = table_with(&[]);
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_chain(&Chain { name: "c", hook: None, comment: None });
        let before = connection.generation().unwrap().id;
        connection.commit_at(before, &batch).unwrap();
        assert_eq!(connection.generation().unwrap().id, before + 1);

        batch = Batch::new(Ipv4, TABLE);
        batch.add_chain(&Chain { name: "d", hook: None, comment: None });
        assert!(matches!(connection.commit_at(before, &batch), Err(CommitError::Stale)));
        assert_eq!(connection.chains(Ipv4, TABLE).unwrap().len(), 1);
    });
}

#[test]
fn a_batch_larger_than_the_send_buffer_is_too_large() {
    in_fresh_netns(|| {
        let mut connection = NftablesSocket::open().unwrap();
        connection.keep_send_buffer();
        let mut batch = Batch::new(Ipv4, TABLE);
        batch.add_table(&Table::default());
        batch.add_set(&Set::new("s", &[Field::Mark]));
        connection.commit(&batch).expect("a small one fits");
        batch.add_elements("s", (0..1_000_000_u32).map(|number| Element::new(number.to_ne_bytes())));
        let refused = connection.commit(&batch).unwrap_err();
        assert!(matches!(refused, CommitError::TooLarge { bytes } if bytes == batch.len()), "{refused:?}");
    });
}
