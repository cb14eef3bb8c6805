//! The part of a family worker that detects foreign writers and decides when their changes are repaired.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use kernel::drift::Drift;
use kernel::outcome::Outcome;
use model::address::Family;

use crate::backend::Backend;
use crate::repairs::{Repaired, Repairs};
use crate::threads;

pub struct DriftWatch {
    family: Family,
    repairs: Repairs,
    /// Whether the thread that listens for foreign writers runs.
    is_listening: bool,
    /// Sends drift to the worker.
    notify: Notify,
}

type Notify = Arc<dyn Fn(Drift) + Send + Sync>;

impl DriftWatch {
    pub fn new(family: Family, notify: impl Fn(Drift) + Send + Sync + 'static) -> Self {
        Self { family, repairs: Repairs::default(), is_listening: false, notify: Arc::new(notify) }
    }

    /// Starts to listen, if foreign writers can change what the backend has written.
    pub fn listen(&mut self, backend: &mut dyn Backend) {
        if self.is_listening {
            return;
        }
        let Some(listener) = backend.drift_listener() else { return };
        self.is_listening = true;
        let notify = self.notify.clone();
        let listen = move || {
            listener(&mut |drift| {
                notify(drift);
                true
            });
        };
        threads::spawn_or_log(self.family, "drift", listen);
    }

    /// Returns whether a sync has to compare everything without delay.
    pub fn detected(&mut self, drift: Drift, now: Instant) -> bool {
        match drift {
            Drift::Detected(by) => {
                self.repairs.detected(by, now);
                false
            }
            Drift::Unwatched => true,
        }
    }

    /// When the detected drift is to be repaired; `None` if no drift was detected.
    pub fn due(&self) -> Option<Instant> {
        self.repairs.due()
    }

    /// Whether the next sync has to repair drift.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.repairs.begin(now)
    }

    /// Whether this sync checked for drift, so that packets may have passed by other rules before it.
    pub fn was_repaired_by(&self, outcome: Outcome) -> bool {
        self.repairs.is_in_progress() && outcome.is_full
    }

    /// A sync succeeded. Returns the repair to log; `None` if a foreign writer changed nothing of ours.
    pub fn synced(&mut self, outcome: Outcome, now: Instant) -> Option<Repaired> {
        self.repairs.synced(outcome.has_drifted, now)
    }
}

impl fmt::Debug for DriftWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriftWatch").field("repairs", &self.repairs).finish_non_exhaustive()
    }
}
