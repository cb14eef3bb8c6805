//! The cost of the nftables mode from API objects to the kernel, for the sizes of clusters in which users have reported problems.
//!
//! A process of its own measures each size in a network namespace of its own, so that its memory is that of one cluster. One process
//! takes the figures that are compared with each other in turns, in processor time where other load would affect them.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a benchmark stops at what it did not expect"
)]

mod affinity;
mod balance;

use std::convert::Infallible;
use std::env::args;
use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kernel::nftables::{KernelTable, TABLE, write_elements};
use kernel::outcome::Outcome;
use model::address::Family;
use model::cluster::{Changes, Cluster};
use model::event::Event;
use model::local::FromPod;
use model::names::Protocol;
use netlink::nftables::{Batch, NftablesSocket};
use netlink::testing::in_fresh_netns;
use plan::mark::Mark;
use plan::nftables::desired::DesiredTable;
use plan::nftables::desired_sets::DesiredSets;
use plan::nftables::interpreter::{self, Sets, Slots};
use plan::nftables::program::ProgramSettings;
use plan::nftables::sets::{Balancer, Element, ElementKey, Set};
use plan::walk::{Packet, PacketContext};

use proxy::backend::{Backend as _, Nftables};
use proxy::metrics::Metrics;
use settings::config::ProxyMode;
use testkit::bench::clusters::{CHANGES, Random, Size, deletions, flips, here, replacements, service, slice};
use testkit::bench::figures::{goal, processor, run, say};
use testkit::bench::record::Record;

const SIZES: [Size; 4] = [
    Size { services: 1_000, endpoints: 5 },
    Size { services: 10_000, endpoints: 5 },
    Size { services: 44_000, endpoints: 1 },
    Size { services: 5_000, endpoints: 50 },
];

fn main() {
    // Cargo adds an argument.
    let given: Vec<String> = args().skip(1).filter(|arg| arg != "--bench").collect();
    let arguments: Vec<&str> = given.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().unwrap();
    let size =
        |services: &str, endpoints: &str| Size { services: number(services), endpoints: number(endpoints) };
    match arguments[..] {
        [] => report(),
        ["size", services, endpoints] => {
            let size = size(services, endpoints);
            in_fresh_netns(move || measure(size));
        }
        ["audit", services, endpoints] => {
            let size = size(services, endpoints);
            in_fresh_netns(move || audit(size));
        }
        ["start", services, endpoints, missed] => measure_start(size(services, endpoints), missed),
        ["compare", small, large, endpoints] => compare(size(small, endpoints), size(large, endpoints)),
        ["affinity"] => affinity::report(),
        ["affinity", timeouts] => {
            let timeouts = number(timeouts);
            in_fresh_netns(move || affinity::measure(timeouts, settings()));
        }
        ["balance"] => balance::report(),
        ["balance", services] => {
            let services = number(services);
            in_fresh_netns(move || balance::measure(services, settings()));
        }
        _ => panic!("unknown arguments {arguments:?}"),
    }
}

// The report.

fn report() {
    let sizes =
        SIZES.map(|size| (size, run(&["size", &size.services.to_string(), &size.endpoints.to_string()])));
    let mut record = Record::of("nftables");
    sizes.iter().for_each(|(size, found)| found.keep(*size, &mut record));

    println!("\ncold load: a process from its start to its first sync, in milliseconds of processor time");
    println!(
        "{:>12} {:>9} {:>7} {:>7} {:>8} {:>8} {:>9} {:>9}   own / kernel <= 0.5   5000 x 50: whole / replayed <= 1.5",
        "size", "elements", "model", "own", "kernel", "whole", "replayed", "elapsed"
    );
    for (size, found) in &sizes {
        let [elements, model, own, kernel, whole, replayed, elapsed] =
            ["added", "model", "own", "kernel", "whole", "replayed", "elapsed"]
                .map(|name| found.median(name));
        // The shares are sampled, so that only sums over many samples are precise.
        let share = found.sum("own") / found.sum("kernel");
        println!(
            "{:>12} {elements:>9} {model:>7.0} {own:>7.0} {kernel:>8.0} {whole:>8.0} {replayed:>9.0} {elapsed:>9.0}   {:>19}   {:>34}",
            size.name(),
            goal(share, 0.5),
            if size.endpoints == 50 {
                goal(whole / replayed, 1.5)
            } else {
                format!("{:.2}", whole / replayed)
            },
        );
    }

    println!("\na new connection to a cluster IP: most lookups in sets, by number of endpoints");
    let of = |endpoints: usize| format!("{endpoints}: {}", lookups(endpoints));
    println!("{:>12} {}", "", [1, 5, 9, 13, 50, 100, 1_000, 5_000].map(of).join("  "));

    println!("\none change, in microseconds: p50 / p99 of elapsed time (of processor time)");
    println!(
        "{:>12} {:>26} {:>26} {:>26}   replaced (p99) <= 1000",
        "size", "endpoint replaced", "endpoint lost or found", "service added"
    );
    for (size, found) in &sizes {
        let of = |name: &str| {
            let [p50, p99, cpu50, cpu99] =
                ["p50", "p99", "cpu50", "cpu99"].map(|what| found.median(&format!("{name}_{what}")));
            format!("{p50:.0} / {p99:.0} ({cpu50:.0} / {cpu99:.0})")
        };
        println!(
            "{:>12} {:>26} {:>26} {:>26}   {:>22}",
            size.name(),
            of("replaced"),
            of("flipped"),
            of("added"),
            goal(found.median("replaced_cpu99"), 1_000.0)
        );
    }
    let both = run(&["compare", "1000", "44000", "1"]);
    let ratio = |what: &str| both.median(&format!("large_{what}")) / both.median(&format!("small_{what}"));
    println!(
        "{:>12} endpoint replaced, in turns: p50 {}, p99 {:.2}; of processor time p50 {}, p99 {}",
        "44k / 1k",
        goal(ratio("p50"), 1.5),
        ratio("p99"),
        goal(ratio("cpu50"), 1.5),
        goal(ratio("cpu99"), 1.5)
    );

    println!(
        "\nthe audit compares one part of the table: microseconds of processor time on the thread that writes, milliseconds on its own"
    );
    println!(
        "{:>12} {:>10} {:>44} {:>12} {:>12}",
        "size", "snapshot", "endpoint replaced, the first after: p50 / p99", "to prepare", "largest part"
    );
    for (size, found) in &sizes {
        let [snapshot, p50, p99, opened] =
            ["snapshot_cpu50", "first_cpu50", "first_cpu99", "opened"].map(|name| found.median(name));
        let first = format!("{p50:.0} / {p99:.0}");
        let largest = found.all("compared").into_iter().fold(0.0, f64::max);
        println!("{:>12} {snapshot:>10.0} {first:>44} {opened:>12.2} {largest:>12.2}", size.name());
    }

    println!("\nresident memory of the whole process, in MiB");
    println!("{:>12} {:>9} {:>9} {:>9}   10,000 x 5 <= 40", "size", "loaded", "changed", "peak");
    for (size, found) in &sizes {
        let [loaded, changed, peak] = ["rss", "rss_changed", "rss_peak"].map(|name| found.median(name));
        let goal = if size.services == 10_000 { goal(loaded, 40.0) } else { String::new() };
        println!("{:>12} {loaded:>9.1} {changed:>9.1} {peak:>9.1}   {goal:>16}", size.name());
    }

    println!(
        "\nrestart: a process that adopts an existing table, in milliseconds of processor time, and what it sends"
    );
    println!(
        "{:>12} {:>7} {:>8} {:>8} {:>9} {:>12} {:>18} {:>22}   of cold load   sent = 0",
        "size", "own", "kernel", "whole", "elapsed", "sent", "5 endpoints missed", "services missed"
    );
    for (size, found) in &sizes {
        let [own, kernel, whole, elapsed] =
            ["own", "kernel", "whole", "elapsed"].map(|name| found.median(&format!("restart_{name}")));
        let sent =
            |start: &str| found.sum(&format!("{start}_added")) + found.sum(&format!("{start}_deleted"));
        let missed =
            |start: &str| format!("{:.0} ({})", found.median(&format!("{start}_whole")), sent(start));
        println!(
            "{:>12} {own:>7.0} {kernel:>8.0} {whole:>8.0} {elapsed:>9.0} {:>12} {:>18} {:>22}   {:>12.2}   {:>8}",
            size.name(),
            sent("restart"),
            missed("endpoints"),
            missed("services"),
            whole / found.median("whole"),
            goal(sent("restart"), 0.0),
        );
    }

    affinity::report();
    balance::report();
}

/// The most lookups in sets that translate a packet of a pod to a cluster IP with this number of endpoints: by running the program,
/// with all random numbers that hit an empty slot.
fn lookups(endpoints: usize) -> u32 {
    let mut cluster = Cluster::new(here());
    [service(0), slice(0, endpoints, None)].iter().for_each(|event| _ = cluster.apply(event));
    let mut table = DesiredTable::new(settings());
    table.accept(cluster.take_changes().routings);
    let at = table.frontends().find_map(|frontend| Some((frontend.ip?, frontend.port.get())));
    let packet = Packet {
        source: [10, 244, 0, 99].into(),
        source_port: None,
        protocol: Protocol::Tcp,
        destination: at.unwrap().into(),
        interface: None,
    };
    let mut sets = CountedLookups { sets: DesiredSets::new(&table), count: 0 };
    let Ok(_) = interpreter::run(&table.program(), &PacketContext::new(&packet, &[]), &mut sets);
    sets.count
}

/// Counts the lookups in sets that only the translation uses.
struct CountedLookups<'a> {
    sets: DesiredSets<'a>,
    count: u32,
}

impl Sets for CountedLookups<'_> {
    type Error = Infallible;

    fn find(&mut self, set: Set, key: ElementKey) -> Result<Option<Element>, Infallible> {
        let is_counted =
            matches!(set, Set::Frontends(_) | Set::Lists(..) | Set::FirstChains(_) | Set::DrawChains(..));
        self.count += u32::from(is_counted);
        self.sets.find(set, key)
    }

    fn slots(&mut self, list: u32) -> Result<Slots, Infallible> {
        self.count += 1;
        self.sets.slots(list)
    }
}

// The measurements.

fn measure(size: Size) {
    let mut load = Load::new(size, |_| true, &[]);
    let random = &mut Random(1);
    let replaced: Vec<_> = replacements(size, random).map(|event| load.change(&[event])).collect();
    let flipped: Vec<_> = flips(size, random).map(|event| load.change(&[event])).collect();
    let new = (0..CHANGES).map(|number| size.services + number);
    let added: Vec<_> = new
        .clone()
        .map(|number| load.change(&[service(number), slice(number, size.endpoints, None)]))
        .collect();
    for number in new {
        load.change(&deletions(number));
    }
    percentiles("replaced", &replaced);
    percentiles("flipped", &flipped);
    percentiles("added", &added);
    say("rss_changed", memory("VmRSS"));
    measure_audit(&mut load, size);
    drop(load);

    // Child processes run in our network namespace.
    let [services, endpoints] = [size.services, size.endpoints].map(|number| number.to_string());
    let start_process = |missed| run(&["start", &services, &endpoints, missed]);
    start_process("nothing").say_as("restart_");
    start_process("endpoints").say_as("endpoints_");
    start_process("services").say_as("services_");
    let batch = prepared(size);
    let start = Instant::now();
    for round in 1.. {
        remove();
        start_process("nothing").say_as("");
        remove();
        say("replayed", replay(&batch).total());
        if (round >= 3 && start.elapsed() > Duration::from_secs(4)) || round == 20 {
            break;
        }
    }
}

/// Measures only the audit, and the figures to compare it with.
fn audit(size: Size) {
    let mut load = Load::new(size, |_| true, &[]);
    say("rss", memory("VmRSS"));
    say("whole", load.spent.total());
    let replaced: Vec<_> = replacements(size, &mut Random(1)).map(|event| load.change(&[event])).collect();
    percentiles("replaced", &replaced);
    measure_audit(&mut load, size);
}

/// Measures the time of an audit: on the thread that writes, for the snapshot and for the first change while the snapshot exists, and
/// on its own thread.
fn measure_audit(load: &mut Load, size: Size) {
    let (mut snapshots, mut first) = (Vec::new(), Vec::new());
    for event in replacements(size, &mut Random(4)) {
        let (spent, desired) = Spent::by(|| load.table.desired());
        snapshots.push(spent);
        first.push(load.change(&[event]));
        drop(desired);
    }
    percentiles("snapshot", &snapshots);
    percentiles("first", &first);
    let start = processor();
    let mut inspection = load.table.desired().open().unwrap();
    say("opened", processor() - start);
    for part in inspection.parts() {
        let start = processor();
        assert!(inspection.compare(part).unwrap().is_empty(), "{part}");
        say("compared", processor() - start);
    }
}

/// Measures a process from its start to its first sync, over what an earlier process has left in the kernel. `missed` is what
/// changed between the two.
fn measure_start(size: Size, missed: &str) {
    let changes: Vec<Event> = match missed {
        "endpoints" => replacements(size, &mut Random(3)).step_by(2).take(5).collect(),
        _ => Vec::new(),
    };
    let exists = |number: usize| missed != "services" || number % 500 != 7;
    let Load { outcome, spent, .. } = Load::new(size, exists, &changes);
    say("rss", memory("VmRSS"));
    say("rss_peak", memory("VmHWM"));
    say("model", spent.model);
    say("own", spent.own);
    say("kernel", spent.kernel);
    say("whole", spent.total());
    say("elapsed", spent.elapsed);
    say("added", outcome.added as f64);
    say("deleted", outcome.deleted as f64);
}

/// Changes two clusters in turns, so that other load of the machine affects both.
fn compare(small: Size, large: Size) {
    let mut sides = [small, large].map(|size| {
        let (give, take) = channel();
        in_fresh_netns(move || give.send(Load::new(size, |_| true, &[])).unwrap());
        (take.recv().unwrap(), replacements(size, &mut Random(2)), Vec::new())
    });
    for _ in 0..CHANGES {
        for (load, changes, spent) in &mut sides {
            spent.push(load.change(&[changes.next().unwrap()]));
        }
    }
    for (name, (_, _, spent)) in ["small", "large"].iter().zip(&sides) {
        percentiles(name, spent);
    }
}

fn open(settings: ProgramSettings) -> Nftables {
    let table = KernelTable::open(settings.family).unwrap();
    Nftables::new(table, settings, Arc::new(Metrics::new(ProxyMode::Nftables)))
}

/// A cluster that has received all objects, and a table that is synced with it.
struct Load {
    cluster: Cluster,
    table: Nftables,
    outcome: Outcome,
    spent: Spent,
}

impl Load {
    fn new(size: Size, exists: impl Fn(usize) -> bool, changes: &[Event]) -> Self {
        let mut cluster = Cluster::new(here());
        let mut spent = Spent::default();
        let numbers: Vec<usize> = (0..size.services).filter(|number| exists(*number)).collect();
        // Objects are dropped soon after the cluster has received them, as those of a watch are. They come in chunks, since reading
        // the clock for each of them would take too long.
        let (_, system) = sampled();
        for some in numbers.chunks(32) {
            let objects: Vec<_> =
                some.iter().map(|number| [service(*number), slice(*number, size.endpoints, None)]).collect();
            let (start, before) = (Instant::now(), processor());
            objects.iter().flatten().for_each(|event| _ = cluster.apply(event));
            spent.own += processor() - before;
            spent.elapsed += start.elapsed().as_secs_f64() * 1e3;
        }
        // The kernel's time went into memory for the model, since the objects reuse theirs.
        spent.kernel = TICK * (sampled().1 - system) as f64;
        spent.own -= spent.kernel;
        changes.iter().for_each(|event| _ = cluster.apply(event));
        let (taking, changes) = Spent::by(|| cluster.take_changes());
        spent += taking;
        spent.model = spent.total();
        let (syncing, (table, outcome)) = Spent::by(|| {
            let mut table = open(settings());
            let outcome = table.sync(changes).unwrap();
            (table, outcome)
        });
        spent += syncing;
        Self { cluster, table, outcome, spent }
    }

    fn change(&mut self, events: &[Event]) -> Spent {
        Spent::by(|| {
            for event in events {
                self.cluster.apply(event);
            }
            let outcome = self.table.sync(self.cluster.take_changes()).unwrap();
            assert!(!outcome.is_full && outcome.added + outcome.deleted > 0);
        })
        .0
    }
}

/// The batch with all elements of a cold load.
fn prepared(size: Size) -> Batch {
    let mut cluster = Cluster::new(here());
    for number in 0..size.services {
        cluster.apply(&service(number));
        cluster.apply(&slice(number, size.endpoints, None));
    }
    let (steps, _) = DesiredTable::new(settings()).replace(cluster.take_changes().routings);
    let mut batch = Batch::new(netlink::Family::Ipv4, TABLE);
    write_elements(&steps, Family::V4, &mut batch);
    batch
}

fn replay(batch: &Batch) -> Spent {
    // Creates the table with its program only. It has no owner once this connection is closed.
    open(settings()).sync(Changes::default()).unwrap();
    let mut connection = NftablesSocket::open().unwrap();
    Spent::by(|| connection.commit(batch).unwrap()).0
}

fn remove() {
    KernelTable::remove(Family::V4).unwrap();
    // The kernel frees the table in the background.
    sleep(Duration::from_millis(300));
}

/// Times in milliseconds.
#[derive(Clone, Copy, Default)]
struct Spent {
    elapsed: f64,
    own: f64,
    kernel: f64,
    /// The part of `own` and `kernel` that the model takes.
    model: f64,
}

impl Spent {
    fn by<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let (own, kernel) = sampled();
        let (start, processor) = (Instant::now(), processor());
        let result = work();
        let (elapsed, total) = (start.elapsed().as_secs_f64() * 1e3, self::processor() - processor);
        let (own_after, kernel_after) = sampled();
        // The processor time is exact. The kernel samples how it divides into user and system time.
        let (own, kernel) = (own_after - own, kernel_after - kernel);
        let share = if own + kernel == 0 { 1.0 } else { own as f64 / (own + kernel) as f64 };
        (Self { elapsed, own: total * share, kernel: total * (1.0 - share), model: 0.0 }, result)
    }

    fn total(&self) -> f64 {
        self.own + self.kernel
    }
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.elapsed += other.elapsed;
        self.own += other.own;
        self.kernel += other.kernel;
    }
}

/// Milliseconds.
const TICK: f64 = 10.0;

/// Processor time of this thread in user and in system mode, in ticks.
fn sampled() -> (u64, u64) {
    let text = read_to_string("/proc/thread-self/stat").unwrap();
    // The name in parentheses may contain anything.
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse().unwrap(), fields[12].parse().unwrap())
}

/// The value of a line of this process's status, in MiB.
fn memory(line: &str) -> f64 {
    let status = read_to_string("/proc/self/status").unwrap();
    let of_line =
        |text: &str| text.strip_prefix(line)?.trim_matches([':', '\t', ' ']).split(' ').next()?.parse().ok();
    status.lines().find_map(of_line).map_or(f64::NAN, |kib: f64| kib / 1024.0)
}

fn percentiles(name: &str, spent: &[Spent]) {
    let at = |of: fn(&Spent) -> f64, percent: usize| {
        let mut sorted: Vec<f64> = spent.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) * percent / 100] * 1e3
    };
    for percent in [50, 99] {
        say(&format!("{name}_p{percent}"), at(|spent| spent.elapsed, percent));
        say(&format!("{name}_cpu{percent}"), at(Spent::total, percent));
    }
}

fn settings() -> ProgramSettings {
    ProgramSettings {
        family: Family::V4,
        balancer: Balancer::Slots,
        mark: Mark::from_bit(14).unwrap(),
        masquerade_all: false,
        from_pod: Some(FromPod::Source("10.128.0.0/9".parse().unwrap())),
        node_ports_everywhere: true,
        can_hash: true,
    }
}
