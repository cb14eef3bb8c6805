use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

/// A folder, a source that has listed it, and the events that have not been checked yet.
struct Lab {
    dir: TempDir,
    source: Manifests,
    events: Vec<String>,
}

thread_local! {
    /// How often listing the node's addresses will fail.
    static FAILURES: Cell<usize> = const { Cell::new(0) };
}

fn own_addresses() -> io::Result<Vec<IpAddr>> {
    if let Some(left) = FAILURES.get().checked_sub(1) {
        FAILURES.set(left);
        return Err(Errno::NOBUFS.into());
    }
    Ok(vec![[127, 0, 0, 1].into(), [192, 0, 2, 11].into()])
}

impl Lab {
    fn new(lay_out: impl FnOnce(&Path)) -> Self {
        let dir = TempDir::new().unwrap();
        lay_out(dir.path());
        let path =
            if dir.path().join("current").exists() { dir.path().join("current") } else { dir.path().into() };
        let mut source = Manifests::open(&path, "node-1", own_addresses).unwrap();
        let mut events = Vec::new();
        source.list(&mut |event| events.extend(show(&event))).unwrap();
        Self { dir, source, events }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Waits for `count` events, and returns all that were emitted.
    fn wait_for(&mut self, count: usize) -> Vec<String> {
        for _ in 0..100 {
            if self.events.len() >= count {
                break;
            }
            self.source
                .follow(Some(Duration::from_millis(100)), &mut |event| self.events.extend(show(&event)))
                .unwrap();
        }
        self.settle()
    }

    /// Returns the events for everything that the kernel has reported so far.
    fn settle(&mut self) -> Vec<String> {
        self.source.follow(Some(Duration::ZERO), &mut |event| self.events.extend(show(&event))).unwrap();
        self.take()
    }
}

/// `+name clusterIP` or `-name`; empty for the beginning and end of lists.
fn show(event: &Event) -> Option<String> {
    match event {
        Event::Listing(_) | Event::Listed(_) => None,
        Event::ServiceApplied(service) => {
            Some(format!("+{} {}", service.metadata.name, service.spec.cluster_ip))
        }
        Event::ServiceDeleted(name) => Some(format!("-{}", name.name)),
        Event::NodeApplied(node) => Some(format!("+node {}", node.metadata.name)),
        Event::NodeDeleted => Some("-node".into()),
        Event::SliceApplied(slice) => Some(format!("+slice {}", slice.metadata.name)),
        Event::SliceDeleted(name) => Some(format!("-slice {}", name.name)),
        Event::ServiceCidrApplied(cidr) => Some(format!("+cidr {}", cidr.metadata.name)),
        Event::ServiceCidrDeleted(name) => Some(format!("-cidr {name}")),
    }
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}}}\n"
    )
}

#[test]
fn the_first_list_contains_everything_in_order_of_file_names() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("b.yml"), service("b", "10.0.0.2")).unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "10.0.0.1")).unwrap();
    let mut events = Vec::new();
    Manifests::open(dir.path(), "n", own_addresses).unwrap().list(&mut |event| events.push(event)).unwrap();
    assert_eq!(events[..3], [Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Listing));
    assert_eq!(events[5..], [Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Listed));
    assert_eq!(events[3..5].iter().filter_map(show).collect::<Vec<_>>(), ["+a 10.0.0.1", "+b 10.0.0.2"]);
}

#[test]
fn other_files_and_other_nodes_are_ignored() {
    let mut lab = Lab::new(|dir| {
        for name in ["web.yaml.bak", ".hidden.yaml", "notes.txt", "web.yaml~"] {
            fs::write(dir.join(name), service("wrong", "10.0.0.9")).unwrap();
        }
        fs::create_dir(dir.join("folder.yaml")).unwrap();
        let nodes = "{apiVersion: v1, kind: Node, metadata: {name: node-1}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: node-2}}\n";
        fs::write(dir.join("nodes.yaml"), nodes).unwrap();
        let others = "\
{apiVersion: v1, kind: Service, metadata: {name: a, labels: {service.kubernetes.io/service-proxy-name: x}}, spec: {clusterIP: 10.0.0.1, ports: [{port: 1}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: None}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c, labels: {service.kubernetes.io/headless: '', kubernetes.io/service-name: b}}, addressType: IPv4}
";
        fs::write(dir.join("others.yaml"), others).unwrap();
    });
    assert_eq!(lab.take(), ["+node node-1"]);
}

#[test]
fn edits_renames_and_deletions_are_followed() {
    let mut lab = Lab::new(|dir| fs::write(dir.join("web.yaml"), service("web", "10.0.0.1")).unwrap());
    assert_eq!(lab.take(), ["+web 10.0.0.1"]);

    lab.write("web.yaml", service("web", "10.0.0.2"));
    assert_eq!(lab.wait_for(1), ["+web 10.0.0.2"], "written in place");

    lab.write("web.yaml.tmp", service("web", "10.0.0.3"));
    fs::rename(lab.path("web.yaml.tmp"), lab.path("web.yaml")).unwrap();
    assert_eq!(lab.wait_for(1), ["+web 10.0.0.3"], "renamed over");

    let dns = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dns"},
        "spec": {"clusterIP": "10.0.0.53", "ports": [{"port": 53}]}}"#;
    lab.write("dns.json", dns);
    assert_eq!(lab.wait_for(1), ["+dns 10.0.0.53"], "a new file");

    fs::rename(lab.path("dns.json"), lab.path("names.json")).unwrap();
    let mut moved = lab.wait_for(2);
    moved.sort();
    assert!(moved.contains(&"+dns 10.0.0.53".into()), "moved to another name: {moved:?}");

    fs::hard_link(lab.path("web.yaml"), lab.path("copy.yaml")).unwrap();
    assert_eq!(lab.wait_for(1), ["+web 10.0.0.3"], "linked in, now the first by name");

    fs::remove_file(lab.path("names.json")).unwrap();
    assert_eq!(lab.wait_for(1), ["-dns"]);
    assert_eq!(lab.settle(), [""; 0]);
}

#[test]
fn a_config_map_that_is_swapped_is_followed() {
    let lay_out = |dir: &Path, version: &str, files: &[(&str, String)]| {
        fs::create_dir(dir.join(version)).unwrap();
        for (name, text) in files {
            fs::write(dir.join(version).join(name), text).unwrap();
        }
    };
    let mut lab = Lab::new(|dir| {
        lay_out(dir, "..1", &[("a.yaml", service("a", "10.0.0.1")), ("b.yaml", service("b", "10.0.0.2"))]);
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
        symlink("..data/b.yaml", dir.join("b.yaml")).unwrap();
    });
    assert_eq!(lab.take(), ["+a 10.0.0.1", "+b 10.0.0.2"]);
    for (round, version) in [(1, "..2"), (2, "..3")] {
        let ip = format!("10.0.{round}.1");
        lay_out(
            lab.dir.path(),
            version,
            &[("a.yaml", service("a", &ip)), ("b.yaml", service("b", "10.0.0.2"))],
        );
        symlink(version, lab.path("..data_tmp")).unwrap();
        fs::rename(lab.path("..data_tmp"), lab.path("..data")).unwrap();
        assert_eq!(lab.wait_for(2), [format!("+a {ip}"), "+b 10.0.0.2".into()], "swap {round}");
    }
    fs::remove_dir_all(lab.path("..1")).unwrap();
    assert_eq!(lab.settle(), [""; 0], "the old directory is not watched");
    fs::remove_file(lab.path("..3/b.yaml")).unwrap();
    assert_eq!(lab.wait_for(1), ["-b"], "the end of a link's target is the end of the manifest");
}

#[test]
fn a_folder_that_is_itself_a_link_may_be_swapped() {
    let mut lab = Lab::new(|dir| {
        for (release, ip) in [("v1", "10.0.0.1"), ("v2", "10.0.0.2")] {
            fs::create_dir(dir.join(release)).unwrap();
            fs::write(dir.join(release).join("web.yaml"), service("web", ip)).unwrap();
        }
        fs::write(dir.join("v1/old.yaml"), service("old", "10.0.0.9")).unwrap();
        symlink("v1", dir.join("current")).unwrap();
    });
    assert_eq!(lab.take(), ["+old 10.0.0.9", "+web 10.0.0.1"]);
    symlink("v2", lab.path("next")).unwrap();
    fs::rename(lab.path("next"), lab.path("current")).unwrap();
    assert_eq!(lab.wait_for(2), ["-old", "+web 10.0.0.2"]);
    lab.write("v2/web.yaml", service("web", "10.0.0.3"));
    assert_eq!(lab.wait_for(1), ["+web 10.0.0.3"], "the new folder is watched");
    lab.write("v1/web.yaml", service("web", "10.0.0.4"));
    assert_eq!(lab.settle(), [""; 0], "the old one is not");
}

#[test]
fn objects_stay_when_the_folder_is_removed_and_it_may_return() {
    let mut lab = Lab::new(|dir| {
        fs::create_dir(dir.join("current")).unwrap();
        fs::write(dir.join("current/web.yaml"), service("web", "10.0.0.1")).unwrap();
    });
    assert_eq!(lab.take(), ["+web 10.0.0.1"]);
    fs::rename(lab.path("current"), lab.path("away")).unwrap();
    assert_eq!(lab.settle(), [""; 0]);
    fs::write(lab.path("away/web.yaml"), service("web", "10.0.0.2")).unwrap();
    assert_eq!(lab.settle(), [""; 0]);
    fs::rename(lab.path("away"), lab.path("current")).unwrap();
    assert_eq!(lab.wait_for(1), ["+web 10.0.0.2"]);
}

#[test]
fn an_unreadable_file_keeps_its_last_content() {
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("bad.yaml"), service("bad", "10.0.0.1")).unwrap();
        fs::write(dir.join("good.yaml"), service("good", "10.0.0.2")).unwrap();
    });
    lab.take();
    for broken in [&b"kind: [\n"[..], b"a: \xff\n", b"a: 1\na: 2\n"] {
        lab.write("bad.yaml", broken);
        lab.write("good.yaml", service("good", "10.0.0.3"));
        assert_eq!(lab.wait_for(1), ["+good 10.0.0.3"], "{broken:?}");
    }
    lab.write("bad.yaml", service("bad", "10.0.0.4"));
    assert_eq!(lab.wait_for(1), ["+bad 10.0.0.4"], "repaired");
    fs::remove_file(lab.path("bad.yaml")).unwrap();
    assert_eq!(lab.wait_for(1), ["-bad"]);
}

#[test]
fn a_rejected_object_keeps_its_last_version_and_others_are_updated() {
    let both = |a: &str, b: &str| format!("{}---\n{}", service("a", a), service("b", b));
    let mut lab = Lab::new(|dir| fs::write(dir.join("x.yaml"), both("10.0.0.1", "10.0.0.2")).unwrap());
    lab.take();
    lab.write("x.yaml", both("nonsense", "10.0.0.3"));
    assert_eq!(lab.wait_for(1), ["+b 10.0.0.3"]);
    lab.write("x.yaml", service("b", "10.0.0.3"));
    assert_eq!(lab.wait_for(2), ["+b 10.0.0.3", "-a"], "gone when it is no longer there at all");
}

#[test]
fn an_object_in_two_files_is_taken_from_the_first() {
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("1.yaml"), service("web", "10.0.0.1")).unwrap();
        fs::write(dir.join("2.yaml"), service("web", "10.0.0.2")).unwrap();
    });
    assert_eq!(lab.take(), ["+web 10.0.0.1"]);
    lab.write("2.yaml", service("web", "10.0.0.3"));
    assert_eq!(lab.wait_for(0), [""; 0], "not its turn");
    fs::remove_file(lab.path("1.yaml")).unwrap();
    assert_eq!(lab.wait_for(1), ["+web 10.0.0.3"]);
    fs::remove_file(lab.path("2.yaml")).unwrap();
    assert_eq!(lab.wait_for(1), ["-web"]);
}

#[test]
fn ten_megabytes_are_read_and_sixty_five_are_rejected() {
    let padding = "#".repeat(1_000);
    let services = (0..10_000u32).map(|number| {
        let [_, b, c, d] = number.to_be_bytes();
        let service = service(&format!("service-{number}"), &format!("10.{b}.{c}.{d}"));
        format!("{service}{padding}\n---\n")
    });
    let large: String = services.collect();
    assert!(large.len() > 10 << 20, "{} bytes", large.len());
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("large.yaml"), &large).unwrap();
        fs::write(dir.join("huge.yaml"), vec![b'#'; (64 << 20) + 1]).unwrap();
        fs::write(dir.join("line.yaml"), vec![b'a'; 10 << 20]).unwrap();
        fs::write(dir.join("small.yaml"), service("small", "10.0.0.1")).unwrap();
    });
    let events = lab.take();
    assert_eq!(events.len(), 10_001);
    assert_eq!(events.last().unwrap(), "+small 10.0.0.1");
}

#[test]
fn reads_that_failed_for_lack_of_a_resource_are_retried_with_growing_delays() {
    let mut now = Instant::now();
    let mut retries = Retries::default();
    retries.settle(now);
    assert_eq!(retries.wait(now), None, "nothing has failed");
    let mut pauses = Vec::new();
    for _ in 0..8 {
        retries.changed.files.insert("web.yaml".into());
        retries.settle(now);
        assert_eq!(retries.take(now), Changed::default(), "not yet");
        let wait = retries.wait(now).unwrap();
        pauses.push(wait.as_millis());
        now += wait;
        assert_eq!(retries.take(now).files, BTreeSet::from(["web.yaml".into()]));
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    retries.settle(now);
    assert_eq!(retries.wait(now), None, "it was read");
    retries.changed.everything = true;
    retries.settle(now);
    assert_eq!(retries.wait(now), Some(Retries::FIRST), "another failure is a first one");
}

#[test]
fn no_file_is_read_before_the_addresses_of_the_node_are_known() {
    FAILURES.set(2);
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("a.yaml"), service("own", "192.0.2.11")).unwrap();
        fs::write(dir.join("b.yaml"), service("web", "10.0.0.1")).unwrap();
    });
    assert_eq!(lab.take(), ["+web 10.0.0.1"]);
    assert_eq!(FAILURES.get(), 0);
}

#[test]
fn a_file_is_read_with_the_last_known_addresses_of_the_node_and_again_once_they_can_be_listed() {
    let mut lab = Lab::new(|dir| fs::write(dir.join("b.yaml"), service("b", "10.0.0.2")).unwrap());
    lab.take();
    FAILURES.set(2);
    let both = format!("{}---\n{}", service("own", "192.0.2.11"), service("web", "10.0.0.1"));
    lab.write("a.yaml", both);
    let events = lab.wait_for(3);
    assert!(events.len() >= 3 && events.iter().all(|it| it == "+web 10.0.0.1"), "{events:?}");
    assert_eq!(FAILURES.get(), 0);
}

#[test]
fn only_a_lack_of_a_resource_is_retried() {
    for (errno, want) in
        [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::NOMEM, true), (Errno::ACCESS, false)]
    {
        assert_eq!(is_shortage(&errno.into()), want, "{errno:?}");
    }
    assert!(!is_shortage(&io::ErrorKind::InvalidData.into()));
}

#[test]
fn errors_are_reported_by_file_and_reason() {
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("a.yaml"), "kind: {\n").unwrap();
        fs::write(dir.join("b.yaml"), service("own", "192.0.2.11")).unwrap();
        fs::write(dir.join("c.yaml"), service("good", "10.0.0.1")).unwrap();
    });
    assert_eq!(lab.take(), ["+good 10.0.0.1"]);
    let rejected = lab.source.rejected();
    assert!(rejected[0].starts_with("a.yaml: line "), "{rejected:?}");
    assert_eq!(
        rejected[1..],
        ["b.yaml: line 1: Service \"own\": spec.clusterIPs[0]: Invalid value: \"192.0.2.11\": \
          takes an address of this node, which could not be reached any more"]
    );
    lab.write("a.yaml", service("a", "10.0.0.2"));
    lab.write("b.yaml", service("own", "10.0.0.3"));
    assert_eq!(lab.wait_for(2), ["+a 10.0.0.2", "+own 10.0.0.3"]);
    assert_eq!(lab.source.rejected(), [""; 0]);
}
