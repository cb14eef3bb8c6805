//! Pods as a Deployment would have them. The controller manager makes slices of them.

use crate::cluster::objects;
use crate::cluster::stage::Stage;
use testkit::lab::Place;

/// The pods of one application, on the stage's node and on another.
#[derive(Debug)]
pub struct Pods<'a> {
    stage: &'a Stage,
    app: &'a str,
}

impl<'a> Pods<'a> {
    pub fn new(stage: &'a Stage, app: &'a str) -> Self {
        stage.api().create("/api/v1/nodes", &objects::node(&stage.other_node()));
        Self { stage, app }
    }

    /// Schedules a pod and lets it become ready.
    pub fn add(&self, place: Place) {
        let node = if place.is_here() { self.stage.node.clone() } else { self.stage.other_node() };
        let api = self.stage.api();
        api.create(&self.stage.pods(), &objects::pod(&self.name(place), self.app, &node));
        api.patch(&format!("{}/status", self.path(place)), &objects::ready(place));
    }

    /// Asks a pod to end. It serves on for a while.
    pub fn terminate(&self, place: Place) {
        self.stage.api().delete(&self.path(place));
    }

    /// The pod has ended.
    pub fn remove(&self, place: Place) {
        self.stage.api().delete(&format!("{}?gracePeriodSeconds=0", self.path(place)));
    }

    fn path(&self, place: Place) -> String {
        format!("{}/{}", self.stage.pods(), self.name(place))
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
