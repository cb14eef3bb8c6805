//! Feature gates: which exist, which are enabled, and which values may be set.

mod table;

use std::collections::{BTreeMap, BTreeSet};

use table::GROUPS;

/// The gates that this program implements. Every other known gate is accepted without effect.
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

/// A gate of Kubernetes, implemented here or not.
#[derive(Clone, Copy, Debug)]
pub struct GateSpec {
    pub name: &'static str,
    pub(crate) stage: Stage,
    pub default: bool,
    /// Only the default may be set.
    pub locked: bool,
}

impl GateSpec {
    /// The `stage` label of the metric `kubernetes_feature_enabled`.
    pub fn stage_label(&self) -> &'static str {
        match self.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        }
    }

    /// What to log if the gate is set at all.
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

/// The state of all gates.
#[derive(Clone, Debug)]
pub struct Gates {
    enabled: BTreeSet<&'static str>,
    /// The gates that the configuration sets, by name or through `AllAlpha` and `AllBeta`.
    set: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// Starts from the defaults and applies `configured`.
    pub fn resolve(configured: &BTreeMap<String, bool>) -> Result<Self, GateError> {
        let mut set = BTreeMap::new();
        for (name, &value) in configured {
            let gate = find(name).ok_or_else(|| GateError::Unknown(name.clone()))?;
            if gate.locked && gate.default != value {
                return Err(GateError::Locked { name: name.clone(), locked_to: gate.default });
            }
            set.insert(gate.name, value);
        }
        // AllAlpha and AllBeta set the gates of their stage that the configuration does not name.
        for (switch, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
            if let Some(&value) = set.get(switch) {
                for gate in all().filter(|gate| gate.stage == stage) {
                    set.entry(gate.name).or_insert(value);
                }
            }
        }
        let is_enabled = |gate: &GateSpec| set.get(gate.name).copied().unwrap_or(gate.default);
        let enabled = all().filter(is_enabled).map(|gate| gate.name).collect();
        Ok(Self { enabled, set })
    }

    pub fn enabled(&self, gate: Gate) -> bool {
        self.enabled.contains(gate.name())
    }

    /// Every gate, and whether it is enabled.
    pub fn states(&self) -> impl Iterator<Item = (GateSpec, bool)> {
        all().map(|gate| (gate, self.enabled.contains(gate.name)))
    }

    /// The gates that the configuration sets, by name or through `AllAlpha` and `AllBeta`.
    pub fn set(&self) -> &BTreeMap<&'static str, bool> {
        &self.set
    }
}

/// Every gate of Kubernetes, grouped by stage.
pub fn all() -> impl Iterator<Item = GateSpec> {
    GROUPS.iter().flat_map(|group| {
        group.names.iter().map(|name| GateSpec {
            name,
            stage: group.stage,
            default: group.default,
            locked: group.locked,
        })
    })
}

pub fn find(name: &str) -> Option<GateSpec> {
    all().find(|gate| gate.name == name)
}

/// The lines of `--help` about the gates: alpha and beta only, as upstream does, sorted by name.
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
            assert!(find(gate.name()).is_some(), "{gate:?}");
        }
    }

    #[test]
    fn all_alpha_and_all_beta_set_the_gates_that_are_not_named() {
        let gates = resolve(&[("AllAlpha", true), ("NativeHistograms", false)]).unwrap();
        assert!(gates.enabled(Gate::LoggingAlphaOptions));
        assert_eq!(gates.set().get("NativeHistograms"), Some(&false));
        assert!(gates.enabled(Gate::LoggingBetaOptions), "beta gates keep their defaults");
        let gates = resolve(&[("AllBeta", false), ("ComponentFlagz", true)]).unwrap();
        assert!(gates.enabled(Gate::ComponentFlagz));
        assert!(!gates.enabled(Gate::ComponentStatusz));
        assert!(gates.enabled(Gate::AllowServiceExternalIPs), "GA gates keep their defaults");
    }

    #[test]
    fn a_locked_gate_accepts_only_its_default() {
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
    fn removed_gates_and_other_spellings_are_unknown() {
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
