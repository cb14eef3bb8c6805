//! Who is who: the identities that everything else is keyed by, each name held once and shared.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU16;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// A Service or EndpointSlice, printed `namespace/name`.
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

/// One port of a Service. The protocol is part of the identity but not of the text, as users know it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    pub service: NamespacedName,
    /// Empty for the only port of a Service that does not name it.
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
    // In the order of their names, by which everything that leaves is sorted.
    Sctp,
    Tcp,
    Udp,
}

impl Protocol {
    /// The API leaves the field out when it means TCP.
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

/// A port that exists. "No node port" is `Option<Port>`, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// `None` for zero and for what does not fit 16 bits.
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

/// Hands out one shared copy of equal values.
#[derive(Debug)]
pub struct Shared<T: ?Sized> {
    copies: HashSet<Arc<T>, RandomState>,
    /// When the set has grown to this, what nobody else holds any more is dropped.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self { copies: HashSet::default(), sweep_at: 64 }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<T> {
    pub fn share<'a>(&mut self, value: &'a T) -> Arc<T>
    where
        Arc<T>: From<&'a T>,
    {
        if let Some(copy) = self.copies.get(value) {
            return copy.clone();
        }
        self.insert(value.into())
    }

    pub fn share_owned(&mut self, value: T) -> Arc<T>
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
            // Twice what is alive, so that sweeping costs a constant share of inserting.
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
    fn a_service_port_prints_as_users_know_it() {
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
    fn ports_outside_1_to_65535_do_not_exist() {
        for (number, want) in
            [(-1, None), (0, None), (1, Some(1)), (65535, Some(65535)), (65536, None), (i64::MAX, None)]
        {
            assert_eq!(Port::from_api(number).map(Port::get), want, "{number}");
        }
    }

    #[test]
    fn equal_values_are_one_copy_and_forgotten_ones_are_swept() {
        let mut names = Shared::<str>::default();
        let kept = names.share("kept");
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
        for number in 0..1_000 {
            names.share(&number.to_string());
        }
        assert!(names.copies.len() <= 65, "{} copies of names nobody holds", names.copies.len());
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }
}
