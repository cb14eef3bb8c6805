//! What was found different, in the form in which it leaves the process.

use std::collections::HashSet;

use anyhow::Context as _;
use kernel::difference::{Difference, Inspection, Wanted};
use model::address::Family;
use serde::{Deserialize, Serialize};

/// Of one family.
#[derive(Debug, Serialize, Deserialize)]
pub struct Findings {
    pub family: String,
    /// How many objects there should be.
    pub objects: usize,
    pub differences: Vec<Finding>,
    /// What of a folder was not understood; see `Desired::left_out`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `missing`, `surplus` or `changed`.
    pub kind: String,
    /// `table`, `chain`, `rule`, `set` or `element`.
    pub class: String,
    pub object: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
}

impl Findings {
    /// Compares the kernel with what is wanted, here and now.
    pub fn of(family: Family, wanted: Wanted) -> anyhow::Result<Self> {
        let (inspection, differences) = compare(family, wanted)?;
        Ok(Self {
            family: name(family),
            objects: inspection.objects(),
            differences: differences.iter().map(Finding::from).collect(),
            left_out: Vec::new(),
        })
    }
}

impl Findings {
    /// Forgets what an earlier look did not find: a pass may have come between what was wanted and what was there.
    pub fn keep_what_was_in(&mut self, before: &Self) {
        let before: HashSet<(&str, &str)> =
            before.differences.iter().map(|it| (it.kind.as_str(), it.object.as_str())).collect();
        self.differences.retain(|it| before.contains(&(it.kind.as_str(), it.object.as_str())));
    }
}

/// The comparison, and what it found.
pub fn compare(family: Family, wanted: Wanted) -> anyhow::Result<(Inspection, Vec<Difference>)> {
    let reading =
        || format!("reading the {} rules of the kernel (it takes root or CAP_NET_ADMIN)", name(family));
    let mut inspection = wanted.open().with_context(reading)?;
    let differences = inspection.differences().with_context(reading)?;
    Ok((inspection, differences))
}

/// As users write it.
pub fn name(family: Family) -> String {
    family.to_string().to_lowercase()
}

impl From<&Difference> for Finding {
    fn from(difference: &Difference) -> Self {
        Self {
            kind: difference.kind.to_string(),
            class: difference.class.to_string(),
            object: difference.object.clone(),
            service: difference.service.as_ref().map(ToString::to_string),
        }
    }
}
