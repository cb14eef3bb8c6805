//! Where the objects come from: an API server or a folder. A thread of its own follows it, delivers every event to the family
//! workers, and sends events of this node to the main thread. It never waits for a receiver.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Context as _;
use model::event::Event;
use watch::api_server::ApiServer;
use watch::manifests::Manifests;

use crate::threads;

/// What other threads send to the main thread.
#[derive(Debug)]
pub enum MainMessage {
    /// The Node object of this node changed.
    Node(Event),
    /// A folder has been read. If it has a Node for this node, that was sent before.
    FolderRead,
    /// The process has to end.
    Stop(anyhow::Error),
}

#[derive(Debug)]
pub enum ObjectSource {
    ApiServer(Box<ApiServer>),
    Folder(Box<Manifests>),
}

impl ObjectSource {
    pub fn folder(path: &Path, node_name: &str) -> anyhow::Result<Self> {
        let manifests = Manifests::open(path, node_name, kernel::interfaces::own_addresses);
        let manifests = manifests.with_context(|| format!("reading manifests in {}", path.display()))?;
        Ok(Self::Folder(Box::new(manifests)))
    }

    /// Follows the source for as long as the process lives. `deliver` must not block.
    pub fn spawn(
        self,
        deliver: impl FnMut(Arc<Event>) + Send + 'static,
        main: Sender<MainMessage>,
    ) -> anyhow::Result<()> {
        let follow = move || {
            let stop = self.follow(deliver, &main);
            let _ = main.send(MainMessage::Stop(stop));
        };
        threads::spawn("source", follow)
    }

    /// For a caller that needs all objects once: reads a folder before it returns, and follows an API server. Returns what of the
    /// folder was rejected.
    pub fn deliver_once(
        self,
        mut deliver: impl FnMut(Arc<Event>) + Send + 'static,
        main: Sender<MainMessage>,
    ) -> anyhow::Result<Vec<String>> {
        let Self::Folder(mut manifests) = self else {
            self.spawn(deliver, main)?;
            return Ok(Vec::new());
        };
        let path = manifests.path().display().to_string();
        let listed = manifests.list(&mut |event| dispatch(event, &mut deliver, &main));
        listed.with_context(|| format!("reading manifests in {path}"))?;
        let _ = main.send(MainMessage::FolderRead);
        Ok(manifests.rejected())
    }

    fn follow(self, mut deliver: impl FnMut(Arc<Event>), main: &Sender<MainMessage>) -> anyhow::Error {
        let mut emit = |event: Event| dispatch(event, &mut deliver, main);
        match self {
            Self::ApiServer(server) => match server.follow(&mut emit) {
                Ok(()) => anyhow::anyhow!("the API server is no longer followed"),
                Err(error) => anyhow::Error::from(error).context("following the API server"),
            },
            Self::Folder(mut manifests) => {
                let path = manifests.path().display().to_string();
                if let Err(error) = manifests.list(&mut emit) {
                    return anyhow::Error::from(error).context(format!("reading manifests in {path}"));
                }
                let _ = main.send(MainMessage::FolderRead);
                loop {
                    if let Err(error) = manifests.follow(None, &mut emit) {
                        return anyhow::Error::from(error).context(format!("following manifests in {path}"));
                    }
                }
            }
        }
    }
}

/// Delivers an event to the family workers, and one of this node also to the main thread.
fn dispatch(event: Event, deliver: &mut impl FnMut(Arc<Event>), main: &Sender<MainMessage>) {
    if matches!(event, Event::NodeApplied(_) | Event::NodeDeleted) {
        // The main thread ends only with the process.
        let _ = main.send(MainMessage::Node(event.clone()));
    }
    deliver(Arc::new(event));
}
