//! Faults of the API server and of the connection, and the maximum delay of a change, in virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;
use crate::client::{Observer, Settings};
use crate::recorder::recorder;
use crate::scripted::{Reply, Server};
use crate::wire::Wire;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const NODES: &str = "/api/v1/nodes";

/// When objects were written, and when their events were emitted.
struct Observed<'a> {
    server: &'a Server,
    written: RefCell<BTreeMap<String, Instant>>,
    applied: RefCell<BTreeMap<String, Instant>>,
}

impl Observed<'_> {
    fn change(&self, path: &'static str) -> String {
        let name = format!("o{}", self.written.borrow().len());
        self.written.borrow_mut().insert(name.clone(), Instant::now());
        self.server.change(path, &name);
        name
    }

    /// Writes an object and waits until it is applied.
    async fn latency(&self, path: &'static str) -> Duration {
        let name = self.change(path);
        let started = Instant::now();
        while !self.applied.borrow().contains_key(&name) {
            assert!(started.elapsed() < Duration::from_secs(3_600), "{name} is never applied");
            sleep(Duration::from_millis(10)).await;
        }
        started.elapsed()
    }

    /// The longest delay of any object. Panics unless all events were emitted.
    fn longest(&self) -> Duration {
        let (written, applied) = (self.written.borrow(), self.applied.borrow());
        let took = |(name, at): (&String, &Instant)| {
            applied.get(name).unwrap_or_else(|| panic!("{name} is not applied")).duration_since(*at)
        };
        written.iter().map(took).max().unwrap()
    }
}

/// Follows the server while `scenario` runs, in virtual time.
fn follow(server: &Server, api: impl FnOnce() -> Api, scenario: impl AsyncFnOnce(&Observed<'_>)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let observed = Observed { server, written: RefCell::default(), applied: RefCell::default() };
        let mut emit = |event: Event| {
            let name = match event {
                Event::ServiceApplied(service) => service.metadata.name.to_string(),
                Event::SliceApplied(slice) => slice.metadata.name.to_string(),
                Event::NodeApplied(node) => node.metadata.name.to_string(),
                Event::ServiceCidrApplied(cidr) => cidr.metadata.name.to_string(),
                Event::Listing(_)
                | Event::Listed(_)
                | Event::ServiceDeleted(_)
                | Event::SliceDeleted(_)
                | Event::NodeDeleted
                | Event::ServiceCidrDeleted(_) => return,
            };
            observed.applied.borrow_mut().entry(name).or_insert_with(Instant::now);
        };
        let (_recorder, poster) = recorder("host");
        let source = ApiServer::new(api(), "n1", poster);
        tokio::select! {
            () = source.run(&mut emit) => {}
            () = scenario(&observed) => {}
        }
    });
}

/// Waits for the first lists, before any fault.
async fn settle(observed: &Observed<'_>) {
    for path in [SERVICES, SLICES, CIDRS, NODES] {
        observed.latency(path).await;
    }
}

async fn every(pause: Duration, times: u32, mut act: impl FnMut()) {
    for _ in 0..times {
        sleep(pause).await;
        act();
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The times of requests for `path` since `since`.
fn requests(server: &Server, path: &str, since: Instant) -> Vec<Instant> {
    let of_path = server.asked().into_iter().filter(|(at, asked)| asked.path == path && *at >= since);
    of_path.map(|(at, _)| at).collect()
}

fn refused(code: u16, reason: &'static str) -> Reply {
    Reply::Refused { code, reason, retry_after: None }
}

#[test]
fn watches_that_are_reset_every_15_s_delay_no_change_by_more_than_2_s() {
    Wire::BOTH.into_iter().for_each(watches_are_reset_every_15_s);
}

fn watches_are_reset_every_15_s(wire: Wire) {
    let server = Server::new();
    follow(
        &server,
        || server.api_with(wire),
        async |observed| {
            settle(observed).await;
            let changes = every(Duration::from_millis(370), 1_600, || drop(observed.change(SLICES)));
            tokio::join!(every(seconds(15), 40, || server.cut()), changes);
            sleep(seconds(5)).await;
            let longest = observed.longest();
            assert!(longest <= seconds(2), "{longest:?}");
        },
    );
    let lists = server.asked().into_iter().filter(|(_, asked)| asked.query("sendInitialEvents") == "true");
    assert_eq!(lists.count(), 4, "nothing was listed again");
}

#[test]
fn a_quiet_watch_lasts_until_its_timeout() {
    let server = Server::new();
    follow(
        &server,
        || server.api(),
        async |observed| {
            settle(observed).await;
            let since = Instant::now();
            sleep(seconds(3_600)).await;
            let count = requests(&server, SLICES, since).len();
            assert!((6..=12).contains(&count), "{count} in an hour, each of 5 to 10 minutes");
            let took = observed.latency(SLICES).await;
            assert!(took <= seconds(1), "{took:?}");
        },
    );
}

#[test]
fn a_silent_peer_delays_a_change_by_less_than_100_s() {
    let server = Server::new();
    follow(
        &server,
        || server.api(),
        async |observed| {
            settle(observed).await;
            for _ in 0..10 {
                server.fall_silent();
                let took = observed.latency(SLICES).await;
                assert!(took < seconds(80), "{took:?}");
                sleep(seconds(200)).await;
            }
        },
    );
}

#[test]
fn with_http2_all_share_a_connection_and_a_silent_peer_delays_a_change_by_less_than_50_s() {
    let place = Tls::new();
    let server = Server::new();
    server.speak_tls(place.server(&place.identity(2_100), None));
    follow(
        &server,
        || server.api_of(place.settings("")),
        async |observed| {
            settle(observed).await;
            assert_eq!(server.asked().len(), 4);
            let before = server.connections();
            // Longer than a pool keeps idle connections by default.
            sleep(seconds(200)).await;
            server.cut();
            observed.latency(SLICES).await;
            assert_eq!(server.connections(), before, "watches go on in the same connection");
            for _ in 0..10 {
                server.fall_silent();
                let took = observed.latency(SLICES).await;
                assert!(took < seconds(50), "{took:?}");
                sleep(seconds(200)).await;
            }
        },
    );
}

#[test]
fn watches_that_become_silent_together_share_one_new_connection() {
    let place = Tls::new();
    let server = Server::new();
    server.speak_tls(place.server(&place.identity(2_100), None));
    follow(
        &server,
        || server.api_of(place.settings("")),
        async |observed| {
            settle(observed).await;
            let before = (server.connections(), server.asked().len());
            server.stop_bookmarks();
            sleep(seconds(3_600)).await;
            let (connections, asked) = (server.connections() - before.0, server.asked().len() - before.1);
            assert!(asked > 4 * 40, "{asked} requests");
            assert!(connections <= 48, "{connections} connections in an hour, one in 75 s is enough");
        },
    );
}

#[test]
fn unanswered_requests_are_retried_on_a_new_connection() {
    for http2 in [false, true] {
        let place = Tls::new();
        let server = Server::new();
        if http2 {
            server.speak_tls(place.server(&place.identity(2_100), None));
        }
        let api = || if http2 { server.api_of(place.settings("")) } else { server.api() };
        follow(&server, api, async |observed| {
            settle(observed).await;
            let before = server.connections();
            let mut left = 1;
            server.script(move |asked| match asked.path == SLICES && left > 0 {
                true => {
                    left -= 1;
                    Reply::Unanswered
                }
                false => Reply::Served,
            });
            server.cut();
            let took = observed.latency(SLICES).await;
            assert!(took < seconds(40), "{took:?}");
            assert!(server.connections() > before);
        });
    }
}

#[test]
fn a_list_that_hangs_is_retried() {
    let server = Server::new();
    follow(
        &server,
        || server.api(),
        async |observed| {
            settle(observed).await;
            let mut left = 1;
            server.script(move |asked| match asked.is_watch() {
                true if asked.query("sendInitialEvents") == "true" => refused(422, "Invalid"),
                true => Reply::Served,
                false if asked.path == SLICES && left > 0 => {
                    left -= 1;
                    Reply::Unanswered
                }
                false => Reply::Served,
            });
            server.compact();
            server.cut();
            let took = observed.latency(SLICES).await;
            assert!(took < seconds(80), "{took:?}");
        },
    );
}

#[test]
fn an_expired_watch_is_listed_again_within_5_s_even_after_an_outage() {
    Wire::BOTH.into_iter().for_each(a_watch_expires);
}

fn a_watch_expires(wire: Wire) {
    let server = Server::new();
    follow(
        &server,
        || server.api_with(wire),
        async |observed| {
            settle(observed).await;
            server.compact();
            server.cut();
            let took = observed.latency(SLICES).await;
            assert!(took < seconds(5), "{took:?}");

            server.script(|_| refused(503, "ServiceUnavailable"));
            server.cut();
            sleep(seconds(600)).await;
            server.compact();
            server.script(|_| Reply::Served);
            let back = Instant::now();
            let took = observed.latency(SLICES).await;
            let first = requests(&server, SLICES, back)[0] - back;
            assert!(first <= seconds(60), "{first:?}");
            assert!(took < first + seconds(5), "{took:?}, and the server was asked after {first:?}");
        },
    );
}

#[test]
fn a_watch_that_always_expires_is_not_listed_without_delay() {
    let server = Server::new();
    follow(
        &server,
        || server.api(),
        async |observed| {
            settle(observed).await;
            let since = Instant::now();
            server.script(|asked| match asked.query("sendInitialEvents") {
                "true" => Reply::Served,
                _ => refused(410, "Expired"),
            });
            every(seconds(2), 300, || server.cut()).await;
            let lists = requests(&server, SLICES, since).len();
            assert!(lists < 80, "{lists} requests in ten minutes");
        },
    );
}

#[test]
fn errors_cause_few_requests_and_their_end_is_noticed_within_a_minute() {
    for reply in [refused(500, "InternalError"), refused(429, "TooManyRequests")] {
        let server = Server::new();
        follow(
            &server,
            || server.api(),
            async |observed| {
                settle(observed).await;
                let since = Instant::now();
                server.script(move |_| reply.clone());
                server.cut();
                sleep(seconds(600)).await;
                let count = requests(&server, SLICES, since).len();
                assert!((10..=25).contains(&count), "{count} requests in ten minutes");
                server.script(|_| Reply::Served);
                let took = observed.latency(SLICES).await;
                assert!(took <= seconds(61), "{took:?}");
            },
        );
    }
}

#[test]
fn a_restarted_server_is_used_again_within_seconds() {
    let server = Server::new();
    follow(
        &server,
        || server.api(),
        async |observed| {
            settle(observed).await;
            for _ in 0..5 {
                server.script(|_| refused(503, "ServiceUnavailable"));
                server.cut();
                sleep(seconds(5)).await;
                server.script(|_| Reply::Served);
                let took = observed.latency(SLICES).await;
                assert!(took <= seconds(7), "{took:?}: no longer than the wait after what failed before");
                sleep(seconds(5)).await;
            }
        },
    );
}

#[test]
fn retry_after_is_respected_up_to_a_limit() {
    for (retry_after, at_least, at_most) in [(5, 5, 6), (40, 40, 41), (86_400, 60, 61)] {
        let server = Server::new();
        follow(
            &server,
            || server.api(),
            async |observed| {
                settle(observed).await;
                let mut left = 1;
                server.script(move |asked| match asked.path == SLICES && left > 0 {
                    true => {
                        left -= 1;
                        Reply::Refused {
                            code: 429,
                            reason: "TooManyRequests",
                            retry_after: Some(retry_after),
                        }
                    }
                    false => Reply::Served,
                });
                let since = Instant::now();
                server.cut();
                let took = observed.latency(SLICES).await;
                let asked = requests(&server, SLICES, since);
                assert!(asked[1] - asked[0] >= seconds(at_least), "{asked:?}");
                assert!(took <= seconds(at_most) + seconds(1), "{took:?}");
            },
        );
    }
}

#[test]
fn a_server_without_protobuf_is_asked_for_json_once_and_for_all() {
    for code in [406, 415] {
        let server = Server::new();
        server.script(move |asked| match asked.wire() {
            Wire::Json => Reply::Served,
            Wire::Protobuf => refused(code, "NotAcceptable"),
        });
        follow(
            &server,
            || server.api_with(Wire::Protobuf),
            async |observed| {
                settle(observed).await;
                for _ in 0..20 {
                    server.cut();
                    let took = observed.latency(SLICES).await;
                    assert!(took <= seconds(2), "{took:?}");
                }
            },
        );
        let asked = server.asked();
        let rejected = asked.iter().filter(|(_, asked)| asked.wire() == Wire::Protobuf).count();
        assert!((1..=4).contains(&rejected), "{rejected}: at most once for each resource");
        let streams = asked.iter().filter(|(_, asked)| asked.query("sendInitialEvents") == "true").count();
        assert_eq!(streams - rejected, 4, "lists are still requested as streams, and only once");
    }
}

#[test]
fn a_forbidden_resource_does_not_affect_the_others() {
    let server = Server::new();
    server.script(|asked| match asked.path == CIDRS || asked.path == NODES {
        true => refused(403, "Forbidden"),
        false => Reply::Served,
    });
    follow(
        &server,
        || server.api(),
        async |observed| {
            for _ in 0..20 {
                for path in [SERVICES, SLICES] {
                    let took = observed.latency(path).await;
                    assert!(took <= seconds(1), "{took:?}");
                }
                sleep(seconds(30)).await;
            }
            server.script(|_| Reply::Served);
            for path in [CIDRS, NODES] {
                let took = observed.latency(path).await;
                assert!(took <= seconds(61), "{took:?}");
            }
        },
    );
}

#[test]
fn every_message_of_a_watch_is_reported() {
    #[derive(Default)]
    struct Messages(Mutex<Vec<(&'static str, Instant)>>);
    impl Observer for Messages {
        fn message(&self, resource: &'static str) {
            self.0.lock().unwrap().push((resource, Instant::now()));
        }
    }
    let (server, messages) = (Server::new(), Arc::new(Messages::default()));
    let settings = Settings { master: Some("server:8080".into()), ..Settings::default() };
    let api = || server.observed_api(settings, messages.clone());
    follow(&server, api, async |observed| {
        settle(observed).await;
        for _ in 0..20 {
            sleep(seconds(30)).await;
            let reported = messages.0.lock().unwrap();
            for resource in ["nodes", "services", "endpointslices", "servicecidrs"] {
                let last =
                    reported.iter().filter(|(of, _)| *of == resource).map(|(_, at)| *at).max().unwrap();
                assert!(last.elapsed() < seconds(63), "bookmarks count");
            }
        }
    });
}

#[test]
fn a_new_token_is_used_within_2_s_and_an_empty_file_keeps_the_last_one() {
    let place = Tls::new();
    let server = Server::new();
    server.speak_tls(place.server(&place.identity(2_100), None));
    let accept = |token: &'static str| {
        server.script(move |asked| match asked.headers["authorization"] == format!("Bearer {token}") {
            true => Reply::Served,
            false => refused(401, "Unauthorized"),
        });
    };
    accept("one");
    place.write("token", "one");
    follow(
        &server,
        || server.api_of(place.settings("tokenFile: token")),
        async |observed| {
            settle(observed).await;
            for content in ["", "\n"] {
                place.write("token", content);
                server.cut();
                let took = observed.latency(SLICES).await;
                assert!(took <= seconds(2), "{took:?}");
            }
            accept("two");
            server.cut();
            sleep(seconds(600)).await;
            place.write("token", "two");
            let took = observed.latency(SLICES).await;
            assert!(took <= seconds(2), "{took:?}");
        },
    );
}

#[test]
fn certificates_that_have_expired_are_named_and_new_ones_are_used() {
    let place = Tls::new();
    let (good, expired) = (place.identity(2_100), place.identity(2_020));
    let server = Server::new();
    let explain = async |api: &Api| {
        let request = http::Request::builder().uri("/version").body(Vec::new()).unwrap();
        api.ask(request).await.unwrap_err().to_string()
    };

    // The server's.
    server.speak_tls(place.server(&expired, None));
    follow(
        &server,
        || server.api_of(place.settings("")),
        async |observed| {
            let shown = explain(&server.api_of(place.settings(""))).await;
            assert!(shown.contains("certificate expired"), "{shown}");
            sleep(seconds(600)).await;
            server.speak_tls(place.server(&good, None));
            let took = observed.latency(SLICES).await;
            assert!(took <= seconds(61), "{took:?}");
        },
    );

    // Ours.
    let user = "client-certificate: client.crt, client-key: client.key";
    server.speak_tls(place.server(&good, Some(&[&good, &expired])));
    place.write_identity(&expired);
    follow(
        &server,
        || server.api_of(place.settings(user)),
        async |observed| {
            sleep(seconds(600)).await;
            place.write_identity(&good);
            let took = observed.latency(SLICES).await;
            assert!(took <= seconds(2), "{took:?}");
        },
    );
}

#[test]
fn an_expired_certificate_is_named_where_the_server_only_says_unauthorized() {
    let place = Tls::new();
    let server = Server::new();
    server.speak_tls(place.server(&place.identity(2_100), None));
    server.script(|_| refused(401, "Unauthorized"));
    place.write_identity(&place.identity(2_020));
    let api = server.api_of(place.settings("client-certificate: client.crt, client-key: client.key"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let request = http::Request::builder().uri("/version").body(Vec::new()).unwrap();
    let error = runtime.block_on(api.ask(request)).unwrap_err();
    assert_eq!(error.code(), Some(401));
    let shown = error.to_string();
    assert!(shown.starts_with("Unauthorized: client certificate "), "{shown}");
    assert!(shown.ends_with("client.crt expired at 2020-01-01T00:00:00Z"), "{shown}");
}

/// A folder of certificates and keys. All are self-signed and trusted.
struct Tls(tempfile::TempDir);

struct Identity {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
}

impl Tls {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.0.path().join(name), content).unwrap();
    }

    /// A certificate that is valid until this year.
    fn identity(&self, year: i32) -> Identity {
        let mut parameters = rcgen::CertificateParams::new(["server".to_owned()]).unwrap();
        parameters.not_before = rcgen::date_time_ymd(2_000, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let ca = self.0.path().join("ca");
        let others = std::fs::read_to_string(&ca).unwrap_or_default();
        std::fs::write(ca, others + &certificate.pem()).unwrap();
        Identity { certificate, key }
    }

    fn write_identity(&self, identity: &Identity) {
        self.write("client.crt", &identity.certificate.pem());
        self.write("client.key", &identity.key.serialize_pem());
    }

    /// A server with this certificate, which requires one of `clients` if there are any.
    fn server(&self, identity: &Identity, clients: Option<&[&Identity]>) -> rustls::ServerConfig {
        let config = rustls::ServerConfig::builder();
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(clients) => {
                let mut roots = rustls::RootCertStore::empty();
                clients.iter().for_each(|client| roots.add(client.certificate.der().clone()).unwrap());
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
                config.with_client_cert_verifier(verifier)
            }
        };
        let key = rustls::pki_types::PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
        let mut config = config.with_single_cert(vec![identity.certificate.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }

    fn settings(&self, user: &str) -> Settings {
        let text = format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}],
              clusters: [{{name: c, cluster: {{server: 'https://server:6443', certificate-authority: ca}}}}],
              users: [{{name: u, user: {{{user}}}}}]}}"
        );
        self.write("config", &text);
        Settings { kubeconfig: Some(self.0.path().join("config")), ..Settings::default() }
    }
}
