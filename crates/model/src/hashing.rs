//! Consistent hashing: a Service may ask that its clients are not assigned to endpoints at random, but by a hash, which is the same
//! on every node.

/// The annotation of a Service.
pub const HASH_ANNOTATION: &str = "service.sluice.io/hash";

/// What is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientHash {
    /// All connections of a client go to the same endpoint.
    Address,
    /// Each connection is hashed on its own.
    AddressAndPort,
}

impl ClientHash {
    pub const BOTH: [Self; 2] = [Self::Address, Self::AddressAndPort];

    /// The value of the annotation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "ClientIP",
            Self::AddressAndPort => "ClientIPAndPort",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|hash| hash.name() == text)
    }
}

/// Why the annotation of a Service is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashIgnored {
    Invalid,
    /// The mode of the proxy, or the kernel, cannot hash clients.
    Unsupported,
}
