//! What the tables hold otherwise than they should, by one `iptables-save` for each.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::fast::RandomState;
use model::address::Family;
use model::names::{NamespacedName, Port, Protocol, ServicePortName};
use model::routing::Routing;
use netlink::accounting;
use plan::iptables::chains::{
    EXTERNAL_SERVICES, FIREWALL, FORWARD, Jump, MARK_MASQ, NODE_PORTS, PROXY_FIREWALL, Purpose, SERVICES,
    Table, is_ours,
};
use plan::iptables::desired::{Chains, DesiredChain, DesiredRules};
use plan::iptables::listing::{Listing, without_comment};
use plan::iptables::plan::Plan;
use plan::iptables::program::{Counters, INVALID_DROPPED, LOCALHOST_NODE_PORTS, Settings};
use plan::iptables::saved_rule::SavedRule;
use plan::nftables::elements::Frontend;

use super::runner::Runner;
use super::{Error, Programs, Rules, Variant};
use crate::difference::{Class, Difference, Fact, Kind, Part};

const TABLES: [Table; 2] = [Table::Filter, Table::Nat];

/// What the tables of one family should hold.
#[derive(Debug)]
pub struct Wanted {
    pub(super) runner: Arc<Runner>,
    pub(super) plan: DesiredRules,
    /// Whether we know of each rule whether it has a comment and counts. If not, both may be as they are.
    pub(super) is_exact: bool,
}

impl Wanted {
    /// What the tables would be made to hold by a process that has these routings from the start. They come in the order
    /// of their names; `endpoints` are all there are, usable or not; `interfaces` the addresses of the node.
    pub fn new(
        rules: &Rules,
        settings: Settings,
        routings: Vec<(ServicePortName, Arc<Routing>)>,
        endpoints: usize,
        interfaces: &[IpAddr],
    ) -> Self {
        let comments = Plan::comments_for(endpoints);
        let tail = settings.tail(&settings.node_port_ips(interfaces).0);
        let services = routings.into_iter().map(|(name, routing)| (name, routing, comments)).collect();
        let plan = DesiredRules { settings, services, tail, stale: BTreeSet::new() };
        Self { runner: rules.runner.clone(), plan, is_exact: false }
    }
}

/// What rules of this mode do, whoever wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Node ports answer at 127.0.0.1.
    pub serves_localhost: bool,
    /// The addresses that serve node ports; none if all do.
    pub node_port_ips: Option<BTreeSet<IpAddr>>,
    /// Forwarded packets that belong to no connection are dropped.
    pub drops_invalid: bool,
    /// The kernel's own chain drops what no rule accepts.
    pub forward_drops: bool,
    /// Chains, their rules, and the jumps to them.
    pub objects: usize,
}

/// Whether there are rules of this mode in the kernel. None where there is no iptables to look with.
pub fn present(family: Family) -> io::Result<Option<Present>> {
    let Ok(runner) = Runner::open(Arc::new(Programs::default()), family) else { return Ok(None) };
    if !may_have_tables(&runner) || runner.check_presence().is_err() {
        return Ok(None);
    }
    let nat = Listing::parse(&runner.save(Table::Nat.name()).map_err(other)?);
    let Some(services) = nat.0.get(SERVICES) else { return Ok(None) };
    let text = runner.save(Table::Filter.name()).map_err(other)?;
    let filter = Listing::parse(&text);
    let rules_of = |chain: &str| filter.0.get(chain).map(Vec::as_slice).unwrap_or_default();
    let tail = services.iter().map(|rule| SavedRule::parse(rule));
    let tail: Vec<SavedRule<'_>> = tail.filter(|rule| rule.target() == Some(NODE_PORTS)).collect();
    let is_everywhere = tail.iter().any(|rule| rule.value("--dst-type") == Some("LOCAL"));
    let ips: BTreeSet<IpAddr> = tail
        .iter()
        .filter_map(|rule| rule.value("-d")?.split('/').next()?.parse().ok())
        .filter(|_| !is_everywhere)
        .collect();
    let excludes_loopback = tail
        .iter()
        .flat_map(|rule| &rule.options)
        .any(|option| option.is_negated && (option.name, option.value) == ("-d", "127.0.0.0/8"));
    let serves_localhost = family == Family::V4
        && ((is_everywhere && !excludes_loopback) || ips.iter().any(IpAddr::is_loopback));
    Ok(Some(Present {
        serves_localhost,
        node_port_ips: (!is_everywhere).then_some(ips),
        drops_invalid: rules_of(FORWARD).iter().any(|rule| rule.contains("--ctstate INVALID")),
        objects: [&filter, &nat].into_iter().map(objects).sum(),
        forward_drops: text.lines().any(|line| line.starts_with(":FORWARD DROP")),
    }))
}

/// With the legacy variant a table comes to be when somebody asks for it. We are not to be the one.
fn may_have_tables(runner: &Runner) -> bool {
    let names = match runner.family() {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    runner.variant() == Variant::Nft
        || std::fs::read_to_string(names)
            .is_ok_and(|names| names.lines().any(|name| name == Table::Nat.name()))
}

fn objects(table: &Listing) -> usize {
    let jumps = table.0.values().flatten().filter(|rule| Jump::own().any(|jump| jump.rule() == **rule));
    let ours = table.0.iter().filter(|(chain, _)| is_ours(chain));
    jumps.count() + ours.map(|(_, rules)| 1 + rules.len()).sum::<usize>()
}

/// A comparison of the kernel's tables with those that are wanted.
#[derive(Debug)]
pub struct Inspection {
    wanted: Wanted,
    /// Of the filter and of the nat table.
    chains: Option<[Chains; 2]>,
}

impl Inspection {
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, chains: None }
    }

    pub fn parts(&self) -> Vec<Part> {
        TABLES.map(Part::Table).to_vec()
    }

    pub fn objects(&self) -> usize {
        let chains = match &self.chains {
            Some(chains) => chains,
            None => &self.wanted.plan.chains(),
        };
        let count = |chains: &Chains| chains.values().map(|chain| 1 + chain.rules.len()).sum::<usize>();
        Jump::ALL.len() + chains.iter().map(count).sum::<usize>()
    }

    pub fn differences(&mut self) -> io::Result<Vec<Difference>> {
        let mut all = Vec::new();
        for table in TABLES {
            all.extend(self.compare(table)?);
        }
        Ok(all)
    }

    /// One of the differences, found with as little looking as possible.
    pub fn first_difference(&mut self) -> io::Result<Option<Difference>> {
        for table in TABLES {
            if let Some(first) = self.compare(table)?.into_iter().next() {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Looks at one table.
    pub fn compare(&mut self, table: Table) -> io::Result<Vec<Difference>> {
        let saved = self.wanted.runner.save(table.name()).map_err(other)?;
        let found = Listing::parse(&saved);
        if self.chains.is_none() {
            if !self.wanted.is_exact {
                let filter = match table {
                    Table::Filter => found.clone(),
                    Table::Nat => {
                        Listing::parse(&self.wanted.runner.save(Table::Filter.name()).map_err(other)?)
                    }
                };
                self.wanted.plan.settings.abilities.counters = counters(&filter);
            }
            self.chains = Some(self.wanted.plan.chains());
        }
        let Some([filter, nat]) = &self.chains else { return Ok(Vec::new()) };
        let wanted = match table {
            Table::Filter => filter,
            Table::Nat => nat,
        };
        let comparison = Comparison {
            table,
            wanted,
            found: &found,
            inspection: self,
            wanted_names: OnceCell::new(),
            leading_to: OnceCell::new(),
        };
        let mut all = comparison.jumps().map_err(other)?;
        all.extend(comparison.chains());
        Ok(all)
    }
}

/// Of one table.
struct Comparison<'a> {
    table: Table,
    wanted: &'a Chains,
    found: &'a Listing,
    inspection: &'a Inspection,
    /// All service ports. Only surplus is looked up here.
    wanted_names: OnceCell<HashSet<&'a ServicePortName, RandomState>>,
    /// By chain: the first rule that leads to it, and the chain that it is in.
    leading_to: OnceCell<HashMap<&'a str, (&'a str, &'a str), RandomState>>,
}

impl<'a> Comparison<'a> {
    /// Other rules may stand before and after them.
    fn jumps(&self) -> Result<Vec<Difference>, Error> {
        let runner = &self.inspection.wanted.runner;
        let mut all = Vec::new();
        for jump in Jump::ALL.into_iter().filter(|jump| jump.table == self.table) {
            let rules = self.found.0.get(jump.from).map(Vec::as_slice).unwrap_or_default();
            // One that is not seen although it could be may be printed differently by some version.
            let is_there = rules.contains(&jump.rule())
                || (self.found.0.contains_key(jump.to)
                    && runner.has_rule(self.table.name(), jump.from, &jump.arguments())?);
            if !is_there {
                let object = self.of_table(&jump.saved());
                all.push(Difference {
                    kind: Kind::Missing,
                    class: Class::Rule,
                    object,
                    service: None,
                    fact: None,
                });
            }
        }
        Ok(all)
    }

    fn chains(&self) -> Vec<Difference> {
        let mut all = Vec::new();
        for (name, chain) in self.wanted {
            match self.found.0.get(name) {
                Some(found) => all.extend(self.rules(name, chain, found)),
                None => {
                    all.push(self.chain(Kind::Missing, name, chain.service.clone()));
                    let rules = chain.rules.iter();
                    all.extend(
                        rules.map(|rule| self.rule(Kind::Missing, name, &rule.text, rule.service.clone())),
                    );
                }
            }
        }
        let stale = &self.inspection.wanted.plan.stale;
        let unwanted = self.found.0.iter().filter(|(name, _)| {
            self.table == Table::Nat
                && Purpose::of(name).is_some()
                && !self.wanted.contains_key(*name)
                && !stale.contains(*name)
        });
        for (name, rules) in unwanted {
            // Not each rule says its protocol: those that do are asked first, then those that lead there.
            let says_protocol = |rule: &&String| SavedRule::parse(rule).value("-p").is_some();
            let named = rules.iter().filter(says_protocol).find_map(|rule| self.named_in(rule));
            let service = named
                .or_else(|| self.named_before(name))
                .or_else(|| rules.iter().find_map(|rule| self.named_in(rule)));
            all.push(self.chain(Kind::Surplus, name, service.clone()));
            all.extend(rules.iter().map(|rule| self.rule(Kind::Surplus, name, rule, service.clone())));
        }
        all
    }

    fn rules(&self, name: &str, wanted: &DesiredChain, found: &[String]) -> Vec<Difference> {
        let has_optional_comments = !self.inspection.wanted.is_exact
            && matches!(Purpose::of(name), Some(Purpose::Cluster | Purpose::Local | Purpose::Endpoint));
        let comparable =
            |rule: &str| if has_optional_comments { without_comment(rule) } else { rule.to_owned() };
        let texts: Vec<String> = wanted.rules.iter().map(|rule| comparable(&rule.text)).collect();
        let held: Vec<String> = found.iter().map(|rule| comparable(rule)).collect();
        if texts == held {
            return Vec::new();
        }
        let mut all = Vec::new();
        let mut left: HashMap<&str, usize, RandomState> = HashMap::default();
        held.iter().for_each(|text| *left.entry(text).or_default() += 1);
        let mut take = |text: &str| left.get_mut(text).filter(|count| **count > 0).map(|count| *count -= 1);
        for (rule, text) in wanted.rules.iter().zip(&texts) {
            if take(text).is_none() {
                all.push(self.rule(Kind::Missing, name, &rule.text, rule.service.clone()));
            }
        }
        // What the kubelet's chain holds besides is the kubelet's.
        for (rule, text) in found.iter().zip(&held).filter(|_| name != FIREWALL) {
            if take(text).is_some() {
                let service = wanted.service.clone().or_else(|| self.named_in(rule));
                all.push(self.rule(Kind::Surplus, name, rule, service));
            }
        }
        if all.is_empty() && name != FIREWALL {
            let object = format!("{}: its rules are in another order", self.of_table(&format!(":{name}")));
            let service = wanted.service.clone();
            all.push(Difference { kind: Kind::Changed, class: Class::Chain, object, service, fact: None });
        }
        all
    }

    fn chain(&self, kind: Kind, name: &str, service: Option<ServicePortName>) -> Difference {
        let object = self.of_table(&format!(":{name}"));
        Difference { kind, class: Class::Chain, object, service, fact: None }
    }

    fn rule(&self, kind: Kind, chain: &str, rule: &str, service: Option<ServicePortName>) -> Difference {
        let object = self.of_table(&format!("-A {chain} {rule}"));
        let fact = self.fact(chain, &SavedRule::parse(rule));
        Difference { kind, class: Class::Rule, object, service, fact }
    }

    fn of_table(&self, text: &str) -> String {
        format!("-t {} {text}", self.table.name())
    }

    /// The service port that the comment of a rule is about, be it one that nobody wants any more.
    fn named_in(&self, rule: &str) -> Option<ServicePortName> {
        let rule = SavedRule::parse(rule);
        let (namespace, rest) = rule.comment()?.split(' ').find_map(|word| word.split_once('/'))?;
        let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
        let named = |protocol| ServicePortName {
            service: NamespacedName::new(namespace, name),
            port: port.into(),
            protocol,
        };
        if let Some(protocol) = rule.value("-p").and_then(protocol) {
            return Some(named(protocol));
        }
        // What does not say its protocol is that of a service that is wanted, if one is.
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(named);
        let wanted = self
            .wanted_names
            .get_or_init(|| self.inspection.wanted.plan.services.iter().map(|(name, ..)| name).collect());
        all.iter().find(|name| wanted.contains(name)).or(all.first()).cloned()
    }

    /// The service port whose rules lead to a chain.
    fn named_before(&self, chain: &str) -> Option<ServicePortName> {
        // From an endpoint's chain to the one that chooses it, to that of external traffic, and no further.
        const FURTHEST: usize = 3;
        let mut chain = chain;
        for _ in 0..FURTHEST {
            let (from, rule) = *self.leading_to().get(chain)?;
            let of_chain = self.wanted.get(from).and_then(|chain| chain.service.clone());
            let found = of_chain.or_else(|| self.named_in(rule));
            let is_choice =
                matches!(Purpose::of(from), Some(Purpose::Cluster | Purpose::Local | Purpose::External));
            if found.is_some() || !is_choice {
                return found;
            }
            chain = from;
        }
        None
    }

    fn leading_to(&self) -> &HashMap<&'a str, (&'a str, &'a str), RandomState> {
        self.leading_to.get_or_init(|| {
            let mut leading: HashMap<_, _, RandomState> = HashMap::default();
            for (from, rules) in &self.found.0 {
                for rule in rules {
                    if let Some(target) = SavedRule::parse(rule).target() {
                        leading.entry(target).or_insert((from.as_str(), rule.as_str()));
                    }
                }
            }
            leading
        })
    }

    /// Of what a rule does, as far as a user of the service would notice.
    fn fact(&self, chain: &str, rule: &SavedRule<'_>) -> Option<Fact> {
        match (self.table, Purpose::of(chain)) {
            (Table::Nat, Some(Purpose::Endpoint)) => {
                let (ip, port) = socket(rule.value("--to-destination")?)?;
                Some(Fact::Endpoint { at: None, ip, port })
            }
            (Table::Nat, Some(Purpose::Cluster | Purpose::Local)) => {
                let seconds = rule.value("--seconds")?.parse().ok()?;
                Some(Fact::Affinity { at: None, to: self.endpoint_of(rule.target()?), seconds })
            }
            (Table::Nat, Some(Purpose::External)) => {
                // Only this node's own is masqueraded.
                let is_it = rule.value("--src-type") == Some("LOCAL") && rule.target() == Some(MARK_MASQ);
                is_it.then_some(Fact::KeepsClients(None))
            }
            (Table::Nat, Some(Purpose::Firewall)) => {
                let source = rule.value("-s")?;
                let single = ["/32", "/128"].iter().find_map(|end| source.strip_suffix(end));
                Some(Fact::Admitted { at: None, range: single.unwrap_or(source).to_owned() })
            }
            (Table::Nat, None) if chain == SERVICES || chain == NODE_PORTS => {
                // Twice the same way in: this one only counts.
                if rule.value("--nfacct-name") == Some(LOCALHOST_NODE_PORTS) {
                    return None;
                }
                frontend(rule).map(Fact::Frontend)
            }
            (Table::Filter, None) if chain == PROXY_FIREWALL => frontend(rule).map(Fact::Restricted),
            (Table::Filter, None) if chain == SERVICES || chain == EXTERNAL_SERVICES => {
                let frontend = frontend(rule)?;
                match rule.target()? {
                    "REJECT" => Some(Fact::Refused(frontend)),
                    "DROP" => Some(Fact::Dropped(frontend)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Where a chain of an endpoint leads to, be it wanted or there.
    fn endpoint_of(&self, chain: &str) -> Option<(IpAddr, Port)> {
        let wanted = self.wanted.get(chain).into_iter().flat_map(|chain| &chain.rules);
        let found = self.found.0.get(chain).into_iter().flatten();
        let mut rules = wanted.map(|rule| rule.text.as_str()).chain(found.map(String::as_str));
        rules.find_map(|rule| socket(SavedRule::parse(rule).value("--to-destination")?))
    }
}

/// Those that the rules make use of; where there are no rules, those that the kernel can have.
fn counters(filter: &Listing) -> Counters {
    match filter.0.get(FORWARD).filter(|rules| !rules.is_empty()) {
        Some(rules) => {
            let counts = rules.iter().any(|rule| rule.contains(INVALID_DROPPED));
            Counters { invalid_dropped: counts, localhost_node_ports: counts }
        }
        None => {
            let can = accounting::Connection::open()
                .is_ok_and(|mut connection| connection.get(LOCALHOST_NODE_PORTS).is_ok());
            Counters { invalid_dropped: can, localhost_node_ports: can }
        }
    }
}

fn frontend(rule: &SavedRule<'_>) -> Option<Frontend> {
    let port = Port::from_api(rule.value("--dport")?.parse().ok()?)?;
    let ip = match rule.value("-d") {
        Some(net) => Some(net.split('/').next()?.parse().ok()?),
        None => None,
    };
    Some(Frontend { ip, protocol: protocol(rule.value("-p")?)?, port })
}

fn socket(text: &str) -> Option<(IpAddr, Port)> {
    let socket: SocketAddr = text.parse().ok()?;
    Some((socket.ip(), Port::from_api(socket.port().into())?))
}

fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn other(error: Error) -> io::Error {
    io::Error::other(error)
}
