//! The four kinds of objects that the proxy follows: their paths, selectors and events.

use model::event::{Event, Kind};
use model::names::NamespacedName;

use crate::meta::Identity;
use crate::wire::{Object, Undecodable};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The Node with this name.
    Node(String),
    Service,
    EndpointSlice,
    ServiceCidr,
}

impl Resource {
    pub fn path(&self) -> &'static str {
        match self {
            Self::Node(_) => "/api/v1/nodes",
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        }
    }

    /// The plural, as in `kubectl` and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Node(_) => "nodes",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::ServiceCidr => "servicecidrs",
        }
    }

    /// Query parameters by which the API server selects objects.
    pub fn selectors(&self) -> Vec<(&'static str, String)> {
        const FIELDS: &str = "fieldSelector";
        const LABELS: &str = "labelSelector";
        match self {
            Self::Node(name) => vec![(FIELDS, format!("metadata.name={name}"))],
            Self::Service => vec![
                (FIELDS, "spec.clusterIP!=None".into()),
                (LABELS, "!service.kubernetes.io/service-proxy-name".into()),
            ],
            Self::EndpointSlice => vec![(LABELS, "!service.kubernetes.io/headless".into())],
            Self::ServiceCidr => vec![],
        }
    }

    /// The name of upstream's controller for this kind, for logs.
    pub fn controller(&self) -> &'static str {
        match self {
            Self::Node(_) => "node config",
            Self::Service => "service config",
            Self::EndpointSlice => "endpoint slice config",
            Self::ServiceCidr => "serviceCIDR config",
        }
    }

    /// The Go type, for logs.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Node(_) => "*v1.Node",
            Self::Service => "*v1.Service",
            Self::EndpointSlice => "*v1.EndpointSlice",
            Self::ServiceCidr => "*v1.ServiceCIDR",
        }
    }

    pub fn listing(&self) -> Option<Event> {
        self.kind().map(Event::Listing)
    }

    /// The event for the end of a list. A Node has no list: if none was found, it does not exist.
    pub fn listed(&self, found: usize) -> Option<Event> {
        match self.kind() {
            Some(kind) => Some(Event::Listed(kind)),
            None if found == 0 => Some(Event::NodeDeleted),
            None => None,
        }
    }

    pub(crate) fn applied(&self, object: Object<'_>) -> Result<Event, Undecodable> {
        Ok(match self {
            Self::Node(_) => Event::NodeApplied(object.decode()?),
            Self::Service => Event::ServiceApplied(object.decode()?),
            Self::EndpointSlice => Event::SliceApplied(object.decode()?),
            Self::ServiceCidr => Event::ServiceCidrApplied(object.decode()?),
        })
    }

    pub fn deleted(&self, identity: &Identity) -> Event {
        match self {
            Self::Node(_) => Event::NodeDeleted,
            Self::Service => Event::ServiceDeleted(NamespacedName::new(&identity.namespace, &identity.name)),
            Self::EndpointSlice => {
                Event::SliceDeleted(NamespacedName::new(&identity.namespace, &identity.name))
            }
            Self::ServiceCidr => Event::ServiceCidrDeleted(identity.name.clone()),
        }
    }

    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Node(_) => None,
            Self::Service => Some(Kind::Service),
            Self::EndpointSlice => Some(Kind::EndpointSlice),
            Self::ServiceCidr => Some(Kind::ServiceCidr),
        }
    }
}
