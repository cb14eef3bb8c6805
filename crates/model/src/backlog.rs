//! Keeps the newest event of each object until the family worker takes it, so that the cluster bounds the memory and not the
//! time for which the worker is busy.
//!
//! ```text
//!   source ─▶ push ─▶ Backlog ─▶ take ─▶ Update, Update, ... ─▶ Cluster::apply_update
//! ```
//!
//! The dropped events make no difference to a [`Cluster`](crate::cluster::Cluster) that applies all taken events before changes are
//! taken from it:
//!
//! * An event contains the whole object, and the order of events of different kinds does not matter. So the newest event of an
//!   object replaces all of its events since the last marker of a list.
//! * `Listing` marks all objects as unlisted, and `Listed` deletes those that have not been applied since. So an event must not
//!   move before a `Listing`. It may move before a `Listed`: the state of its object afterwards is the same in either order.
//! * A complete list replaces all objects of its kind, so events before its `Listing` no longer matter.
//! * A `Listing` without a `Listed` has no effect once another `Listing` follows.
//!
//! So there are at most two segments per kind: events, and the events of a list that began after them. Besides existing objects, a
//! segment contains the names of those deleted since the last take.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::fast::RandomState;
use jiff::Timestamp;

use crate::event::{Event, Kind};
use crate::names::NamespacedName;

/// The number of trigger times kept of one object's superseded events. The oldest are kept, since they waited longest.
const MAX_TRIGGER_TIMES: usize = 8;

/// Events that wait to be taken.
#[derive(Debug, Default)]
pub struct Backlog {
    /// The number of events pushed so far, by which taken events are ordered.
    pushed: u64,
    services: OfKind,
    slices: OfKind,
    service_cidrs: OfKind,
    /// The newest state of this node. Its deletion changes nothing in the model.
    node: Option<Arc<Event>>,
}

/// The newest event of an object, or a marker of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    pub event: Arc<Event>,
    pub superseded: Superseded,
}

/// What metrics need of events that a newer one of the same object replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Superseded {
    pub count: u64,
    pub trigger_times: Vec<Timestamp>,
}

/// The events of one kind: one segment, or two of which the second begins with `Listing`.
#[derive(Debug, Default)]
struct OfKind {
    before: Option<Segment>,
    last: Segment,
}

#[derive(Debug, Default)]
struct Segment {
    /// Whether the first event is `Listing`.
    begins: bool,
    newest: HashMap<NamespacedName, (u64, Update), RandomState>,
    /// Whether the last event is `Listed`.
    ends: bool,
}

impl Backlog {
    pub fn push(&mut self, event: Arc<Event>) {
        self.pushed += 1;
        let order = self.pushed;
        match &*event {
            Event::Listing(kind) => self.of(*kind).begin(),
            Event::Listed(kind) => self.of(*kind).end(),
            Event::ServiceApplied(service) => {
                let name = service.metadata.full_name();
                self.services.last.put(name, order, event.into());
            }
            Event::ServiceDeleted(name) => self.services.last.put(name.clone(), order, event.into()),
            Event::SliceApplied(slice) => {
                let name = slice.metadata.full_name();
                self.slices.last.put(name, order, event.into());
            }
            Event::SliceDeleted(name) => self.slices.last.put(name.clone(), order, event.into()),
            Event::ServiceCidrApplied(cidr) => {
                let name = NamespacedName::new("", &cidr.metadata.name);
                self.service_cidrs.last.put(name, order, event.into());
            }
            Event::ServiceCidrDeleted(name) => {
                let name = NamespacedName::new("", name);
                self.service_cidrs.last.put(name, order, event.into());
            }
            Event::NodeApplied(_) => self.node = Some(event),
            Event::NodeDeleted => {}
        }
    }

    /// Takes all events, which must be applied in this order before changes are taken from the store.
    pub fn take(&mut self) -> Vec<Update> {
        let mut updates: Vec<Update> = self.node.take().map(Update::from).into_iter().collect();
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
            let OfKind { before, last } = std::mem::take(self.of(kind));
            before.into_iter().chain([last]).for_each(|segment| segment.append_to(&mut updates, kind));
        }
        updates
    }

    pub fn is_empty(&self) -> bool {
        let kinds = [&self.services, &self.slices, &self.service_cidrs];
        self.node.is_none() && kinds.into_iter().all(OfKind::is_empty)
    }

    /// The number of objects with an event.
    pub fn len(&self) -> usize {
        let kinds = [&self.services, &self.slices, &self.service_cidrs];
        let segments = kinds.into_iter().flat_map(|kind| kind.before.iter().chain([&kind.last]));
        segments.map(|segment| segment.newest.len()).sum::<usize>() + usize::from(self.node.is_some())
    }

    fn of(&mut self, kind: Kind) -> &mut OfKind {
        match kind {
            Kind::Service => &mut self.services,
            Kind::EndpointSlice => &mut self.slices,
            Kind::ServiceCidr => &mut self.service_cidrs,
        }
    }
}

impl OfKind {
    fn begin(&mut self) {
        let mut before = std::mem::replace(&mut self.last, Segment { begins: true, ..Segment::default() });
        let is_broken_off = before.begins && !before.ends;
        if is_broken_off && let Some(mut older) = self.before.take() {
            older.absorb(before);
            before = older;
        } else if is_broken_off {
            before.begins = false;
        }
        self.before = Some(before);
    }

    fn end(&mut self) {
        self.last.ends = true;
        if self.last.begins {
            self.before = None;
        }
    }

    fn is_empty(&self) -> bool {
        let Segment { begins, newest, ends } = &self.last;
        self.before.is_none() && !begins && newest.is_empty() && !ends
    }
}

impl Segment {
    fn put(&mut self, name: NamespacedName, order: u64, mut update: Update) {
        match self.newest.entry(name) {
            Entry::Occupied(mut held) => {
                update.superseded.replace(&held.get().1);
                held.insert((order, update));
            }
            Entry::Vacant(free) => _ = free.insert((order, update)),
        }
    }

    /// Merges the events of a later segment.
    fn absorb(&mut self, later: Self) {
        for (name, (order, update)) in later.newest {
            self.put(name, order, update);
        }
    }

    fn append_to(self, updates: &mut Vec<Update>, kind: Kind) {
        let marker = |event| Update::from(Arc::new(event));
        updates.extend(self.begins.then(|| marker(Event::Listing(kind))));
        let mut newest: Vec<(u64, Update)> = self.newest.into_values().collect();
        newest.sort_unstable_by_key(|(order, _)| *order);
        updates.extend(newest.into_iter().map(|(_, update)| update));
        updates.extend(self.ends.then(|| marker(Event::Listed(kind))));
    }
}

impl From<Arc<Event>> for Update {
    fn from(event: Arc<Event>) -> Self {
        Self { event, superseded: Superseded::default() }
    }
}

impl Superseded {
    /// Merges an update that this newer one replaces.
    fn replace(&mut self, older: &Update) {
        self.count += older.superseded.count + 1;
        let mut times = older.superseded.trigger_times.clone();
        if let Event::SliceApplied(slice) = &*older.event {
            let text = slice.metadata.annotations.last_change_trigger_time.as_deref();
            times.extend(text.and_then(|text| text.parse::<Timestamp>().ok()));
        }
        times.append(&mut self.trigger_times);
        times.truncate(MAX_TRIGGER_TIMES);
        self.trigger_times = times;
    }
}
