//! The differences between the kernel and the desired state, as the debug API returns them.

use std::collections::HashSet;

use anyhow::Context as _;
use kernel::inspection::DesiredState;
use model::address::Family;
use model::names::ServicePortName;
use plan::difference::Difference;
use plan::served::{Fact, KernelComparison, ServedChange};
use serde::{Deserialize, Serialize};

/// The result for one family.
#[derive(Debug, Serialize, Deserialize)]
pub struct Findings {
    pub family: String,
    /// The number of objects in the desired state.
    pub objects: usize,
    pub differences: Vec<Finding>,
    /// What the differences mean to users of Services.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub served: Vec<ServedFinding>,
    /// Files and objects of a folder that were rejected, with the reason; empty in the answer of a running proxy.
    #[serde(rename = "left_out", skip_serializing_if = "Vec::is_empty", default)]
    pub rejected: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `missing`, `unexpected` or `changed`.
    pub kind: String,
    /// `table`, `chain`, `rule`, `set` or `element`.
    pub class: String,
    pub object: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServedFinding {
    /// `missing` or `unexpected`.
    pub kind: String,
    /// A frontend, an endpoint, or what they do.
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
}

impl Findings {
    /// Compares the kernel with the desired state.
    pub fn of(family: Family, desired: DesiredState) -> anyhow::Result<Self> {
        let comparison = compare(family, desired)?;
        Ok(Self {
            family: name(family),
            objects: comparison.objects,
            differences: findings(&comparison),
            served: served(&comparison),
            rejected: Vec::new(),
        })
    }

    /// Keeps only what an earlier comparison found as well. A sync between the reads of one comparison causes findings that are
    /// no real differences.
    pub fn retain_found_in(&mut self, before: &Self) {
        let served: HashSet<&ServedFinding> = before.served.iter().collect();
        let before: HashSet<(&str, &str)> =
            before.differences.iter().map(|it| (it.kind.as_str(), it.object.as_str())).collect();
        self.differences.retain(|it| before.contains(&(it.kind.as_str(), it.object.as_str())));
        self.served.retain(|it| served.contains(it));
    }
}

/// Each object that differs, with the service port it belongs to.
pub fn findings(comparison: &KernelComparison) -> Vec<Finding> {
    let finding = |(difference, service): (&Difference, Option<ServicePortName>)| Finding {
        kind: difference.kind.to_string(),
        class: difference.object.class().to_string(),
        object: difference.text(),
        service: service.map(|name| name.to_string()),
    };
    comparison.with_owners().map(finding).collect()
}

fn served(comparison: &KernelComparison) -> Vec<ServedFinding> {
    let mut all = Vec::new();
    for ServedChange { service, facts, .. } in comparison.changes() {
        let service = service.map(|name| name.to_string());
        all.extend(facts.into_iter().map(|Fact { kind, text }| ServedFinding {
            kind: kind.to_string(),
            what: text,
            service: service.clone(),
        }));
    }
    all
}

pub fn compare(family: Family, desired: DesiredState) -> anyhow::Result<KernelComparison> {
    let reading =
        || format!("reading the {} rules of the kernel (it takes root or CAP_NET_ADMIN)", name(family));
    desired.open().and_then(|mut inspection| inspection.compare_all()).with_context(reading)
}

/// The family as users write it.
pub fn name(family: Family) -> String {
    family.to_string().to_lowercase()
}
