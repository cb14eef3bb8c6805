//! Whatever objects and interfaces are called, a restore text says what was meant and nothing else.

use std::time::{Duration, Instant};

use model::cluster::Cluster;
use model::event::Event;
use model::names::{NamespacedName, Protocol, ServicePortName};
use plan::iptables::chains::{Namer, Purpose};
use plan::iptables::plan::{IptablesPlan, RestoreLimits};
use plan::iptables::quoting::argument;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::options::{DetectLocal, Options, interfaces};

const ENDPOINTS: [&str; 2] = ["10.244.1.5:8080", "10.244.2.6:8080"];

/// What is called by other names in each case.
#[derive(Clone, Debug)]
struct Names {
    namespace: String,
    service: String,
    port: String,
    interface: String,
}

impl Names {
    fn plain() -> Self {
        let [namespace, service, port, interface] = ["ns-0", "svc-0", "port-0", "if-0"].map(String::from);
        Self { namespace, service, port, interface }
    }

    fn service_port(&self) -> ServicePortName {
        let service = NamespacedName::new(&self.namespace, &self.service);
        ServicePortName { service, port: self.port.as_str().into(), protocol: Protocol::Tcp }
    }

    /// The names of chains.
    fn chains(&self) -> Vec<String> {
        let namer = Namer::new(&self.service_port());
        let own = [Purpose::Cluster, Purpose::Local, Purpose::External, Purpose::Firewall];
        let own = own.map(|purpose| namer.chain(purpose));
        own.into_iter().chain(ENDPOINTS.map(|text| namer.endpoint(text))).map(|it| it.to_string()).collect()
    }

    /// A whole restore with these names in it.
    fn restore(&self, lines: &[&str]) -> String {
        let detect_local =
            DetectLocal { bridge_interface: Some(self.interface.clone()), ..DetectLocal::default() };
        let options = Options { detect_local, ..Options::default() };
        let mut cluster = Cluster::new(options.here());
        for line in lines {
            let mut event = testkit::event(line);
            let (metadata, ports): (_, Vec<&mut String>) = if let Event::ServiceApplied(service) = &mut event
            {
                let ports = service.spec.ports.iter_mut().map(|port| &mut port.name);
                (&mut service.metadata, ports.collect())
            } else if let Event::SliceApplied(slice) = &mut event {
                let ports = slice.ports.iter_mut().filter_map(|port| port.name.as_mut());
                slice.metadata.labels.service_name = Some(self.service.clone());
                (&mut slice.metadata, ports.collect())
            } else {
                panic!("{line}")
            };
            (metadata.namespace, metadata.name) =
                (self.namespace.as_str().into(), self.service.as_str().into());
            ports.into_iter().for_each(|port| *port = self.port.clone());
            cluster.apply(&event);
        }
        let mut plan = IptablesPlan::new(options.settings(), RestoreLimits::LEGACY, Duration::from_secs(30));
        plan.set_node_port_ips(&interfaces());
        for (name, routing) in cluster.take_changes().routings {
            plan.replace(name, routing);
        }
        let attempt = plan.full(Instant::now(), Some(&[]));
        attempt.restores().iter().map(ToString::to_string).collect()
    }
}

/// What `iptables-restore` makes of a text: for each line its arguments.
fn arguments(text: &str) -> Vec<Vec<String>> {
    text.split_terminator('\n').map(arguments_of_line).collect()
}

/// After `add_param_to_argv` of iptables.
fn arguments_of_line(line: &str) -> Vec<String> {
    assert!(line.len() < 10_239 && !line.contains('\0'), "{line}");
    let mut all = Vec::new();
    let mut current = String::new();
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in line.chars() {
        match c {
            c if is_escaped => {
                current.push(c);
                is_escaped = false;
            }
            '\\' if is_quoted => is_escaped = true,
            '"' if is_quoted => {
                all.push(std::mem::take(&mut current));
                is_quoted = false;
            }
            '"' => is_quoted = true,
            ' ' | '\t' if !is_quoted => {
                if !current.is_empty() {
                    all.push(std::mem::take(&mut current));
                }
            }
            c => current.push(c),
        }
    }
    assert!(!is_quoted, "an open quote: {line}");
    all.extend((!current.is_empty()).then_some(current));
    all
}

fn text() -> impl Strategy<Value = String> {
    let pieces = select(vec![
        "\n",
        "\r",
        "\0",
        "\t",
        " ",
        "\"",
        "\\",
        "'",
        "`",
        "#",
        "!",
        "-j ACCEPT",
        "\nCOMMIT\n",
        "\n-A INPUT -j DROP\n",
        "é",
        "\u{85}",
        "\u{2028}",
        "*nat",
        ":X - [0:0]",
        "a",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ]);
    let piece = prop_oneof![pieces.prop_map(String::from), any::<char>().prop_map(String::from)];
    (vec(piece, 0..12), select(vec![1, 1, 1, 2_000]))
        .prop_map(|(pieces, times)| pieces.concat().repeat(times))
}

fn names() -> impl Strategy<Value = Names> {
    [text(), text(), text(), text()].prop_map(|[namespace, service, port, interface]| Names {
        // What has no name at all is not served.
        namespace: format!("n{namespace}"),
        service: format!("s{service}"),
        port,
        interface: format!("i{interface}"),
    })
}

const SERVICE: &str = "service ns/name 10.96.0.10 port:80@30080 LoadBalancer lb-ips=203.0.113.5 ranges=203.0.113.0/24 external-ips=198.51.100.1 health=32100";
const SLICE: &str = "slice ns/name of name port:8080 10.244.1.5@node-1 10.244.2.6@node-2";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn names_stay_within_their_arguments(
        names in names(),
        flags in select(vec!["", " external-policy=Local", " internal-policy=Local affinity=60"]),
        has_endpoints in any::<bool>(),
    ) {
        let service = format!("{SERVICE}{flags}");
        let lines = if has_endpoints { vec![&*service, SLICE] } else { vec![&*service] };
        let plain = Names::plain();
        let want = arguments(&plain.restore(&lines));
        let got = arguments(&names.restore(&lines));
        prop_assert_eq!(got.len(), want.len());

        let chains: Vec<_> = plain.chains().into_iter().zip(names.chains()).collect();
        let [plain_name, name] = [&plain, &names].map(|names| names.service_port().to_string());
        for (want, got) in want.iter().zip(&got) {
            let mut before = "";
            let want: Vec<String> = want.iter().map(|text| {
                let renamed = chains.iter().fold(text.clone(), |text, (plain, chain)| text.replace(plain, chain));
                match std::mem::replace(&mut before, text) {
                    "--comment" => argument(&renamed.replace(&plain_name, &name)),
                    "-i" => argument(&names.interface),
                    _ => renamed,
                }
            }).collect();
            prop_assert_eq!(got, &want);
        }
    }
}

/// The names that users have: nothing of them is quoted that upstream would not quote.
#[test]
fn the_longest_valid_names_are_written_in_full() {
    let label = "a".repeat(63);
    let names =
        Names { namespace: label.clone(), service: label.clone(), port: label, interface: "cni0".into() };
    let text = names.restore(&[&format!("{SERVICE} external-policy=Local"), SLICE]);
    let name = names.service_port().to_string();
    for comment in [
        format!("--comment {name} -m tcp"),
        format!("--comment \"{name} cluster IP\""),
        format!("--comment \"other traffic to {name} will be dropped by KUBE-PROXY-FIREWALL\""),
        format!("--comment \"masquerade LOCAL traffic for {name} external destinations\""),
    ] {
        assert!(text.contains(&comment), "{comment}\n{text}");
    }
    assert!(text.contains(" -i cni0 "), "{text}");
}
