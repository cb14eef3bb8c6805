//! Pods as a Deployment creates them. The controller manager turns them into EndpointSlices.

use crate::cluster::objects;
use crate::cluster::test_cluster::TestCluster;
use testkit::lab::Place;

/// The pods of one application, on the node under test and on another.
#[derive(Debug)]
pub struct Pods<'a> {
    cluster: &'a TestCluster,
    app: &'a str,
}

impl<'a> Pods<'a> {
    pub fn new(cluster: &'a TestCluster, app: &'a str) -> Self {
        cluster.api().create("/api/v1/nodes", &objects::node(&cluster.other_node()));
        Self { cluster, app }
    }

    /// Creates a pod that is scheduled and ready.
    pub fn add(&self, place: Place) {
        let node = if place.is_local() { self.cluster.node.clone() } else { self.cluster.other_node() };
        let api = self.cluster.api();
        api.create(&self.cluster.pods(), &objects::pod(&self.name(place), self.app, &node));
        api.patch(&format!("{}/status", self.path(place)), &objects::ready(place));
    }

    /// Deletes a pod with its grace period: it is terminating, and its server keeps running.
    pub fn terminate(&self, place: Place) {
        self.cluster.api().delete(&self.path(place));
    }

    /// Deletes a terminating pod for good.
    pub fn remove(&self, place: Place) {
        self.cluster.api().delete(&format!("{}?gracePeriodSeconds=0", self.path(place)));
    }

    fn path(&self, place: Place) -> String {
        format!("{}/{}", self.cluster.pods(), self.name(place))
    }

    fn name(&self, place: Place) -> String {
        match place {
            Place::PodA => format!("{}-a", self.app),
            Place::PodB => format!("{}-b", self.app),
            Place::Remote(number) => format!("{}-remote-{number}", self.app),
            Place::Host => format!("{}-host", self.app),
        }
    }
}
