//! An API server as a source of events.

use std::cell::RefCell;
use std::io;

use model::event::Event;

use crate::client::Api;
use crate::list_watch::ListWatch;
use crate::recorder::Poster;
use crate::resource::Resource;

#[derive(Debug)]
pub struct ApiServer {
    api: Api,
    node_name: String,
    poster: Poster,
}

impl ApiServer {
    pub fn new(api: Api, node_name: &str, poster: Poster) -> Self {
        Self { api, node_name: node_name.into(), poster }
    }

    /// Emits all events on the calling thread, and returns only if it cannot start. The first list of Nodes results in
    /// `NodeApplied`, or in `NodeDeleted` if the node does not exist.
    pub fn follow(self, emit: &mut dyn FnMut(Event)) -> io::Result<()> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        runtime.block_on(self.run(emit));
        Ok(())
    }

    async fn run(self, emit: &mut dyn FnMut(Event)) {
        let emit = RefCell::new(emit);
        let follow = |resource| ListWatch::new(&self.api, resource).follow(&emit);
        tokio::join!(
            follow(Resource::Node(self.node_name)),
            follow(Resource::Service),
            follow(Resource::EndpointSlice),
            follow(Resource::ServiceCidr),
            self.poster.post(&self.api),
        );
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
