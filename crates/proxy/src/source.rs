//! Where the objects come from: an API server or a folder. Either is followed on a thread of its own, which delivers every event
//! to the families and what happens to this node to the main thread. It waits for neither.

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
    /// Something happened to this node.
    Node(Event),
    /// A folder has been read. If there is a node in it, it was sent before.
    FolderRead,
    /// The process has to end.
    Stop(anyhow::Error),
}

#[derive(Debug)]
pub enum Source {
    ApiServer(Box<ApiServer>),
    Folder(Box<Manifests>),
}

impl Source {
    pub fn folder(path: &Path, node_name: &str) -> anyhow::Result<Self> {
        let manifests = Manifests::open(path, node_name, kernel::interfaces::own_addresses);
        let manifests = manifests.with_context(|| format!("reading manifests in {}", path.display()))?;
        Ok(Self::Folder(Box::new(manifests)))
    }

    /// Follows the source for ever. `deliver` must not wait for anything.
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

    /// For a caller that needs everything once: a folder is read at once. Returns what of it was not understood.
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
        let listed = manifests.list(&mut |event| send(event, &mut deliver, &main));
        listed.with_context(|| format!("reading manifests in {path}"))?;
        let _ = main.send(MainMessage::FolderRead);
        Ok(manifests.left_out())
    }

    fn follow(self, mut deliver: impl FnMut(Arc<Event>), main: &Sender<MainMessage>) -> anyhow::Error {
        let mut deliver = |event: Event| send(event, &mut deliver, main);
        match self {
            Self::ApiServer(server) => match server.follow(&mut deliver) {
                Ok(()) => anyhow::anyhow!("the API server is no longer followed"),
                Err(error) => anyhow::Error::from(error).context("following the API server"),
            },
            Self::Folder(mut manifests) => {
                let path = manifests.path().display().to_string();
                if let Err(error) = manifests.list(&mut deliver) {
                    return anyhow::Error::from(error).context(format!("reading manifests in {path}"));
                }
                let _ = main.send(MainMessage::FolderRead);
                loop {
                    if let Err(error) = manifests.follow(None, &mut deliver) {
                        return anyhow::Error::from(error).context(format!("following manifests in {path}"));
                    }
                }
            }
        }
    }
}

fn send(event: Event, deliver: &mut impl FnMut(Arc<Event>), main: &Sender<MainMessage>) {
    if matches!(event, Event::NodeApplied(_) | Event::NodeDeleted) {
        // The main thread ends only with the process.
        let _ = main.send(MainMessage::Node(event.clone()));
    }
    deliver(Arc::new(event));
}
