//! The names that identify objects and service ports. An interner keeps one copy of each.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU16;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// The name of a Service or EndpointSlice, printed as `namespace/name`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl NamespacedName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Identifies one port of a Service. As in upstream, `Display` leaves out the protocol, though it is part of the identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    pub service: NamespacedName,
    /// Empty for an unnamed port, which is then the only port of its Service.
    pub port: Arc<str>,
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port.is_empty() { self.service.fmt(f) } else { write!(f, "{}:{}", self.service, self.port) }
    }
}

impl fmt::Debug for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/{}", self.protocol)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    // Alphabetical: the derived order is that of all sorted output.
    Sctp,
    Tcp,
    Udp,
}

impl Protocol {
    /// The field is optional in the API and defaults to TCP.
    pub fn from_api(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// A valid port number. "No node port" is `Option<Port>`, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// `None` unless the number is between 1 and 65535.
    pub fn from_api(number: i64) -> Option<Self> {
        u16::try_from(number).ok().and_then(NonZeroU16::new).map(Self)
    }

    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Shares one allocation among equal values.
#[derive(Debug)]
pub struct Interner<T: ?Sized> {
    copies: HashSet<Arc<T>, RandomState>,
    /// When the set has grown to this size, values that are no longer used elsewhere are removed.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { copies: HashSet::default(), sweep_at: 64 }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    pub fn intern<'a>(&mut self, value: &'a T) -> Arc<T>
    where
        Arc<T>: From<&'a T>,
    {
        if let Some(copy) = self.copies.get(value) {
            return copy.clone();
        }
        self.insert(value.into())
    }

    pub fn intern_owned(&mut self, value: T) -> Arc<T>
    where
        T: Sized,
    {
        if let Some(copy) = self.copies.get(&value) {
            return copy.clone();
        }
        self.insert(value.into())
    }

    fn insert(&mut self, copy: Arc<T>) -> Arc<T> {
        if self.copies.len() >= self.sweep_at {
            self.copies.retain(|copy| Arc::strong_count(copy) > 1);
            // Twice the number of values in use, so that the amortized cost of sweeping is constant.
            self.sweep_at = (self.copies.len() * 2).max(64);
        }
        self.copies.insert(copy.clone());
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_port_is_printed_as_upstream_prints_it() {
        for (port, protocol, text, debug) in [
            ("http", Protocol::Tcp, "shop/web:http", "shop/web:http/TCP"),
            ("", Protocol::Udp, "shop/web", "shop/web/UDP"),
        ] {
            let name =
                ServicePortName { service: NamespacedName::new("shop", "web"), port: port.into(), protocol };
            assert_eq!(name.to_string(), text);
            assert_eq!(format!("{name:?}"), debug);
        }
    }

    #[test]
    fn port_numbers_are_between_1_and_65535() {
        for (number, want) in
            [(-1, None), (0, None), (1, Some(1)), (65535, Some(65535)), (65536, None), (i64::MAX, None)]
        {
            assert_eq!(Port::from_api(number).map(Port::get), want, "{number}");
        }
    }

    #[test]
    fn equal_values_share_one_copy_and_unused_ones_are_removed() {
        let mut names = Interner::<str>::default();
        let kept = names.intern("kept");
        assert!(Arc::ptr_eq(&kept, &names.intern("kept")));
        for number in 0..1_000 {
            names.intern(&number.to_string());
        }
        assert!(names.copies.len() <= 65, "{} names are kept, most of them unused", names.copies.len());
        assert!(Arc::ptr_eq(&kept, &names.intern("kept")));
    }
}
