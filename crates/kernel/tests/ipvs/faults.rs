//! With one in ten kernel calls failing, reading back and committing the difference ends in the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernel::ipvs::KernelServers;
use model::address::Family;
use netlink::faults::{Chance, Fault, Faults};
use plan::ipvs::servers::{ActualServers, RealServer, ServerStep, VirtualAddress, VirtualServer};

use crate::setup::{in_netns_with_ipvs, plain, real, virtual_address};

/// What the kernel should hold: virtual servers with the weights of their real servers.
#[derive(Debug, Default, PartialEq)]
struct Desired {
    servers: BTreeMap<VirtualAddress, (VirtualServer, BTreeMap<RealServer, u32>)>,
    bound: BTreeSet<IpAddr>,
}

impl Desired {
    fn random(chance: &mut Chance) -> Self {
        let mut desired = Self::default();
        for _ in 0..chance.below(8) {
            let address = virtual_address(&format!("10.96.0.{}:80/TCP", chance.below(6)));
            let scheduler = chance.one_of(&["rr", "lc"]).unwrap();
            let reals = (0..chance.below(5))
                .map(|_| real(&format!("10.244.1.{}:8080", chance.below(6))))
                .collect::<BTreeSet<_>>();
            let weighed = reals.into_iter().map(|real| (real, u32::from(chance.below(2) == 1))).collect();
            desired.servers.insert(address, (plain(scheduler), weighed));
            desired.bound.insert(address.ip);
        }
        desired
    }

    fn of(actual: &ActualServers) -> Self {
        let weights = |reals: &BTreeMap<RealServer, _>| -> BTreeMap<RealServer, u32> {
            reals
                .iter()
                .map(|(real, actual): (_, &plan::ipvs::servers::ActualReal)| (*real, actual.weight))
                .collect()
        };
        let servers = actual.virtual_servers.iter();
        Self {
            servers: servers
                .map(|(at, found)| (*at, (found.server.clone(), weights(&found.real_servers))))
                .collect(),
            bound: actual.bound.clone(),
        }
    }

    fn steps_from(&self, actual: &Self) -> Vec<ServerStep> {
        let mut steps = Vec::new();
        let none = BTreeMap::new();
        for (at, (server, reals)) in &self.servers {
            let present = match actual.servers.get(at) {
                None => {
                    steps.push(ServerStep::AddVirtual(*at, server.clone()));
                    &none
                }
                Some((found, present)) => {
                    if found != server {
                        steps.push(ServerStep::SetVirtual(*at, server.clone()));
                    }
                    present
                }
            };
            for (real, weight) in reals {
                match present.get(real) {
                    None => steps.push(ServerStep::AddReal(*at, *real, *weight)),
                    Some(found) if found != weight => steps.push(ServerStep::SetWeight(*at, *real, *weight)),
                    Some(_) => {}
                }
            }
            let unexpected = present.keys().filter(|real| !reals.contains_key(real));
            steps.extend(unexpected.map(|real| ServerStep::DeleteReal(*at, *real)));
        }
        let unexpected = actual.servers.keys().filter(|at| !self.servers.contains_key(at));
        steps.extend(unexpected.map(|at| ServerStep::DeleteVirtual(*at)));
        steps.extend(self.bound.difference(&actual.bound).map(|ip| ServerStep::Bind(*ip)));
        steps.extend(actual.bound.difference(&self.bound).map(|ip| ServerStep::Unbind(*ip)));
        steps
    }
}

/// Reads and commits until a commit succeeds.
fn sync(servers: &mut KernelServers, desired: &Desired) {
    for _ in 0..200 {
        let Ok(actual) = servers.read() else { continue };
        if servers.commit(&desired.steps_from(&Desired::of(&actual))).is_ok() {
            return;
        }
    }
    panic!("no sync succeeded");
}

#[test]
fn histories_with_faults_end_in_the_desired_state() {
    in_netns_with_ipvs(|| {
        let mut servers = KernelServers::open(Family::V4).unwrap();
        servers.ensure_interface().unwrap();
        let mut injected = 0;
        for seed in 0..100 {
            let mut chance = Chance::from_seed(seed);
            let desired = Desired::random(&mut chance);
            let mut faults = Faults::new(seed, 100, &Fault::ALL);
            faults.during(|| sync(&mut servers, &desired));
            injected += faults.injected().values().sum::<usize>();
            let actual = Desired::of(&servers.read().unwrap());
            assert_eq!(actual, desired, "seed {seed}, {faults:?}");
        }
        assert!(injected > 100, "{injected} faults are too few");
    });
}
