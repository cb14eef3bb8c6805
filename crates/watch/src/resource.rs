//! The four kinds of objects we follow: where they are, which of them are ours, and what they become.

use model::event::{Event, Kind};
use model::names::NamespacedName;
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The one of that name.
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

    /// Its plural, as `kubectl` and metrics know it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Node(_) => "nodes",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::ServiceCidr => "servicecidrs",
        }
    }

    /// The choice of objects that the API server makes for us, as parameters of a query.
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

    /// What the reference calls the part of it that follows these.
    pub fn controller(&self) -> &'static str {
        match self {
            Self::Node(_) => "node config",
            Self::Service => "service config",
            Self::EndpointSlice => "endpoint slice config",
            Self::ServiceCidr => "serviceCIDR config",
        }
    }

    /// What the reference calls the type.
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

    /// The end of a list. A node has none: it is there, or a list that is over proves that it is not.
    pub fn listed(&self, found: usize) -> Option<Event> {
        match self.kind() {
            Some(kind) => Some(Event::Listed(kind)),
            None if found == 0 => Some(Event::NodeDeleted),
            None => None,
        }
    }

    pub fn applied(&self, object: &str) -> serde_json::Result<Event> {
        Ok(match self {
            Self::Node(_) => Event::NodeApplied(serde_json::from_str(object)?),
            Self::Service => Event::ServiceApplied(serde_json::from_str(object)?),
            Self::EndpointSlice => Event::SliceApplied(serde_json::from_str(object)?),
            Self::ServiceCidr => Event::ServiceCidrApplied(serde_json::from_str(object)?),
        })
    }

    pub fn deleted(&self, who: &Identity) -> Event {
        match self {
            Self::Node(_) => Event::NodeDeleted,
            Self::Service => Event::ServiceDeleted(NamespacedName::new(&who.namespace, &who.name)),
            Self::EndpointSlice => Event::SliceDeleted(NamespacedName::new(&who.namespace, &who.name)),
            Self::ServiceCidr => Event::ServiceCidrDeleted(who.name.clone()),
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

/// What any object says of itself, whatever else is in it.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Identity {
    pub name: String,
    pub namespace: String,
    pub resource_version: String,
    pub annotations: Option<Marks>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Marks {
    /// On the bookmark that ends a list sent as a stream.
    #[serde(rename = "k8s.io/initial-events-end")]
    pub initial_events_end: Option<String>,
}

impl Identity {
    pub fn of(object: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Identity,
        }
        serde_json::from_str::<Object>(object).map(|object| object.metadata)
    }

    pub fn ends_list(&self) -> bool {
        let mark = self.annotations.as_ref().and_then(|marks| marks.initial_events_end.as_deref());
        mark == Some("true")
    }
}
