//! Where the objects come from: an API server or a folder. Either is followed on a thread of its own, which tells the
//! families everything and whoever waits for it what happens to this node.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use anyhow::Context as _;
use model::address::Family;
use model::event::Event;
use watch::api_server::ApiServer;
use watch::manifests::Manifests;

use crate::family::Message;
use crate::threads;

/// How to talk to each family that there is.
pub type Lines = BTreeMap<Family, SyncSender<Message>>;

/// What a source tells the main thread.
#[derive(Debug)]
pub enum Word {
    /// Something happened to this node.
    Node(Event),
    /// A folder has been read. If there is a node in it, it was told of before.
    FolderRead,
    /// There is no going on.
    Over(anyhow::Error),
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

    /// Follows the source for ever.
    pub fn spawn(self, lines: Lines, words: Sender<Word>) -> anyhow::Result<()> {
        let follow = move || {
            let over = self.follow(&lines, &words);
            let _ = words.send(Word::Over(over));
        };
        threads::spawn("source", follow)
    }

    /// For a caller that needs everything once: a folder is read at once. Returns what of it was not understood.
    pub fn tell_once(self, lines: Lines, words: Sender<Word>) -> anyhow::Result<Vec<String>> {
        let Self::Folder(mut manifests) = self else {
            self.spawn(lines, words)?;
            return Ok(Vec::new());
        };
        let path = manifests.path().display().to_string();
        let listed = manifests.list(&mut |event| tell(event, &lines, &words));
        listed.with_context(|| format!("reading manifests in {path}"))?;
        let _ = words.send(Word::FolderRead);
        Ok(manifests.left_out())
    }

    fn follow(self, lines: &Lines, words: &Sender<Word>) -> anyhow::Error {
        let mut tell = |event: Event| tell(event, lines, words);
        match self {
            Self::ApiServer(server) => match server.follow(&mut tell) {
                Ok(()) => anyhow::anyhow!("nobody follows the API server any more"),
                Err(error) => anyhow::Error::from(error).context("following the API server"),
            },
            Self::Folder(mut manifests) => {
                let path = manifests.path().display().to_string();
                if let Err(error) = manifests.list(&mut tell) {
                    return anyhow::Error::from(error).context(format!("reading manifests in {path}"));
                }
                let _ = words.send(Word::FolderRead);
                loop {
                    if let Err(error) = manifests.follow(None, &mut tell) {
                        return anyhow::Error::from(error).context(format!("following manifests in {path}"));
                    }
                }
            }
        }
    }
}

fn tell(event: Event, lines: &Lines, words: &Sender<Word>) {
    // Whoever is told ends only with the process, or has heard enough.
    if matches!(event, Event::NodeApplied(_) | Event::NodeDeleted) {
        let _ = words.send(Word::Node(event.clone()));
    }
    let event = Arc::new(event);
    for line in lines.values() {
        let _ = line.send(Message::Event(event.clone()));
    }
}
