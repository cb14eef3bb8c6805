//! Feature gates: which exist, which are on, and what setting one may say.

mod table;

use std::collections::{BTreeMap, BTreeSet};

use table::GROUPS;

/// The gates that change what this program does. All others can be set and have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    AllowServiceExternalIPs,
    ComponentFlagz,
    ComponentStatusz,
    LoggingAlphaOptions,
    LoggingBetaOptions,
}

impl Gate {
    pub fn name(self) -> &'static str {
        match self {
            Self::AllowServiceExternalIPs => "AllowServiceExternalIPs",
            Self::ComponentFlagz => "ComponentFlagz",
            Self::ComponentStatusz => "ComponentStatusz",
            Self::LoggingAlphaOptions => "LoggingAlphaOptions",
            Self::LoggingBetaOptions => "LoggingBetaOptions",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

/// What is known of one gate.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub name: &'static str,
    pub(crate) stage: Stage,
    pub default: bool,
    pub locked: bool,
}

impl Known {
    /// As the metric of enabled features calls it.
    pub fn stage_label(&self) -> &'static str {
        match self.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        }
    }

    /// What setting the gate at all deserves to be told.
    pub fn warning(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Alpha | Stage::Beta => None,
            Stage::Ga => Some("Warning: setting GA feature gate. It will be removed in a future release."),
            Stage::Deprecated => {
                Some("Warning: setting deprecated feature gate. It will be removed in a future release.")
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {name} to {}, feature is locked to {locked_to}", !locked_to)]
    Locked { name: String, locked_to: bool },
}

/// Which gates are on.
#[derive(Clone, Debug)]
pub struct Gates {
    on: BTreeSet<&'static str>,
    set: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// Every gate at its default, then what the configuration sets.
    pub fn resolve(wanted: &BTreeMap<String, bool>) -> Result<Self, GateError> {
        let mut set = BTreeMap::new();
        for (name, &value) in wanted {
            let gate = known(name).ok_or_else(|| GateError::Unknown(name.clone()))?;
            if gate.locked && gate.default != value {
                return Err(GateError::Locked { name: name.clone(), locked_to: gate.default });
            }
            set.insert(gate.name, value);
        }
        // AllAlpha and AllBeta speak for those of their stage that nobody mentioned.
        for (switch, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
            if let Some(&value) = set.get(switch) {
                for gate in all().filter(|gate| gate.stage == stage) {
                    set.entry(gate.name).or_insert(value);
                }
            }
        }
        let is_on = |gate: &Known| set.get(gate.name).copied().unwrap_or(gate.default);
        let on = all().filter(is_on).map(|gate| gate.name).collect();
        Ok(Self { on, set })
    }

    pub fn enabled(&self, gate: Gate) -> bool {
        self.on.contains(gate.name())
    }

    /// Every gate, and whether it is on.
    pub fn states(&self) -> impl Iterator<Item = (Known, bool)> {
        all().map(|gate| (gate, self.on.contains(gate.name)))
    }

    /// What the configuration changed, `AllAlpha` and `AllBeta` spelled out.
    pub fn set(&self) -> &BTreeMap<&'static str, bool> {
        &self.set
    }
}

/// Every gate by name. A beta feature that is off by default is still a beta feature.
pub fn all() -> impl Iterator<Item = Known> {
    GROUPS.iter().flat_map(|group| {
        group.names.iter().map(|name| Known {
            name,
            stage: group.stage,
            default: group.default,
            locked: group.locked,
        })
    })
}

pub fn known(name: &str) -> Option<Known> {
    all().find(|gate| gate.name == name)
}

/// The lines `--help` gives to the gates one may want to set, sorted by name.
pub fn help() -> Vec<String> {
    let mut lines: Vec<_> = all()
        .filter_map(|gate| {
            let stage = match gate.stage {
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Ga | Stage::Deprecated => return None,
            };
            Some(format!("{}=true|false ({stage} - default={})", gate.name, gate.default))
        })
        .collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(pairs: &[(&str, bool)]) -> Result<Gates, GateError> {
        Gates::resolve(&pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    }

    #[test]
    fn gates_start_at_their_defaults() {
        let gates = resolve(&[]).unwrap();
        for (gate, want) in [
            (Gate::AllowServiceExternalIPs, true),
            (Gate::ComponentFlagz, true),
            (Gate::ComponentStatusz, true),
            (Gate::LoggingAlphaOptions, false),
            (Gate::LoggingBetaOptions, true),
        ] {
            assert_eq!(gates.enabled(gate), want, "{gate:?}");
            assert!(known(gate.name()).is_some(), "{gate:?}");
        }
    }

    #[test]
    fn whole_stages_are_switched_except_what_is_named() {
        let gates = resolve(&[("AllAlpha", true), ("NativeHistograms", false)]).unwrap();
        assert!(gates.enabled(Gate::LoggingAlphaOptions));
        assert_eq!(gates.set().get("NativeHistograms"), Some(&false));
        assert!(gates.enabled(Gate::LoggingBetaOptions), "beta gates are left alone");
        let gates = resolve(&[("AllBeta", false), ("ComponentFlagz", true)]).unwrap();
        assert!(gates.enabled(Gate::ComponentFlagz));
        assert!(!gates.enabled(Gate::ComponentStatusz));
        assert!(gates.enabled(Gate::AllowServiceExternalIPs), "GA gates are left alone");
    }

    #[test]
    fn a_locked_gate_takes_only_the_value_it_has() {
        assert!(resolve(&[("MultiCIDRServiceAllocator", true)]).is_ok());
        assert!(resolve(&[("SeparateCacheWatchRPC", false)]).is_ok());
        for (name, value, want) in [
            ("MultiCIDRServiceAllocator", false, "to false, feature is locked to true"),
            ("SeparateCacheWatchRPC", true, "to true, feature is locked to false"),
        ] {
            let error = resolve(&[(name, value)]).unwrap_err().to_string();
            assert_eq!(error, format!("cannot set feature gate {name} {want}"));
        }
    }

    #[test]
    fn gates_of_the_past_and_other_spellings_are_unknown() {
        for name in [
            "Nope",
            "allalpha",
            "ProxyTerminatingEndpoints",
            "TopologyAwareHints",
            "ServiceInternalTrafficPolicy",
            "EndpointSliceProxying",
            "IPv6DualStack",
            "MinimizeIPTablesRestore",
            "KubeProxyDrainingTerminatingNodes",
            "LoadBalancerIPMode",
            "ServiceTrafficDistribution",
        ] {
            assert_eq!(resolve(&[(name, true)]).unwrap_err(), GateError::Unknown(name.to_owned()));
        }
    }

    #[test]
    fn every_name_is_listed_once() {
        let names: BTreeSet<_> = all().map(|gate| gate.name).collect();
        assert_eq!((names.len(), all().count()), (242, 242));
    }
}
