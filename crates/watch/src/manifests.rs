//! A folder of manifests as a source of events, without an API server.
//!
//! ```text
//!   folder ── file changed ──▶ manifest::read ──▶ content of the file ──▶ events for the differences
//! ```
//!
//! A file that cannot be read keeps its last content. If a resource was exhausted, the file is read again until that succeeds,
//! because no event may follow. An object in several files is taken from the first one by name, and from the next one when
//! that no longer contains it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use model::event::{Event, Kind};
use model::names::NamespacedName;
use rustix::io::Errno;

use crate::folder::{Changed, Folder};
use crate::manifest::{self, Content, Form, Object, ObjectKey, ObjectKind, Problem};

/// More than any manifest needs, and little enough not to exhaust a node's memory.
const MAX_FILE_SIZE: u64 = 64 << 20;

/// A folder of manifests, and the objects of each file.
#[derive(Debug)]
pub struct Manifests {
    folder: Folder,
    /// The name of the only Node that is emitted.
    node_name: String,
    offers: BTreeMap<OsString, BTreeSet<ObjectKey>>,
    files_of: HashMap<ObjectKey, BTreeSet<OsString>>,
    /// The errors of each file when it was last read.
    rejected: BTreeMap<OsString, Vec<String>>,
    list_own_addresses: OwnAddresses,
    /// As last listed. `None` until that has succeeded once.
    own_addresses: Option<Vec<IpAddr>>,
    retries: Retries,
}

/// Reads that failed because a resource was exhausted.
#[derive(Debug, Default)]
struct Retries {
    changed: Changed,
    /// The time of the next attempt, and the delay before it.
    due: Option<(Instant, Duration)>,
}

impl Retries {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    /// The time until the next attempt. `None` if there is nothing to retry.
    fn wait(&self, now: Instant) -> Option<Duration> {
        if self.changed == Changed::default() {
            return None;
        }
        Some(self.due.map_or(Duration::ZERO, |(due, _)| due.saturating_duration_since(now)))
    }

    /// The reads to retry now.
    fn take(&mut self, now: Instant) -> Changed {
        if self.wait(now) != Some(Duration::ZERO) {
            return Changed::default();
        }
        let pause = self.due.map_or(Self::FIRST, |(_, pause)| (pause * 2).min(Self::LONGEST));
        self.due = Some((now + pause, pause));
        std::mem::take(&mut self.changed)
    }

    /// Called after each attempt. The delay starts over once everything has been read.
    fn settle(&mut self, now: Instant) {
        if self.changed == Changed::default() {
            self.due = None;
        } else if self.due.is_none() {
            self.due = Some((now + Self::FIRST, Self::FIRST));
        }
    }
}

/// Whether a retry may succeed without any change to the file.
fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [Errno; 6] =
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::AGAIN, Errno::INTR];
    SHORTAGES.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Lists the addresses of this node, which no cluster IP in a manifest may equal.
pub type OwnAddresses = fn() -> io::Result<Vec<IpAddr>>;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("larger than {} MiB", MAX_FILE_SIZE >> 20)]
    TooLarge,
    #[error("not a file")]
    NotAFile,
    #[error(transparent)]
    Text(#[from] Problem),
}

impl Manifests {
    pub fn open(path: &Path, node_name: &str, list_own_addresses: OwnAddresses) -> io::Result<Self> {
        Ok(Self {
            folder: Folder::open(path, &["yaml", "yml", "json"])?,
            node_name: node_name.into(),
            offers: BTreeMap::new(),
            files_of: HashMap::new(),
            rejected: BTreeMap::new(),
            list_own_addresses,
            own_addresses: None,
            retries: Retries::default(),
        })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The errors of all files when they were last read, with file, place and reason.
    pub fn rejected(&self) -> Vec<String> {
        let each = |(file, reasons): (&OsString, &Vec<String>)| {
            let file = file.to_string_lossy().into_owned();
            reasons.iter().map(|reason| format!("{file}: {reason}")).collect::<Vec<_>>()
        };
        self.rejected.iter().flat_map(each).collect()
    }

    /// Emits all objects, like the first lists from an API server.
    pub fn list(&mut self, emit: &mut dyn FnMut(Event)) -> io::Result<()> {
        const KINDS: [Kind; 3] = [Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice];
        KINDS.into_iter().map(Event::Listing).for_each(&mut *emit);
        let files = self.folder.files()?.into_iter().collect();
        self.reload_files(files, emit);
        // A list that lacks an existing file would remove its Services from the kernel.
        self.retries.settle(Instant::now());
        while let Some(wait) = self.retries.wait(Instant::now()) {
            std::thread::sleep(wait);
            let files = self.retries.take(Instant::now()).files;
            self.reload_files(files, emit);
            self.retries.settle(Instant::now());
        }
        KINDS.into_iter().map(Event::Listed).for_each(emit);
        Ok(())
    }

    /// Waits for a change, at most for `timeout`, and emits its events. All events of one change are emitted in one call.
    pub fn follow(&mut self, timeout: Option<Duration>, emit: &mut dyn FnMut(Event)) -> io::Result<()> {
        let retry = self.retries.wait(Instant::now());
        let wait = timeout.into_iter().chain(retry).min();
        let mut changed = self.folder.wait(wait)?;
        let again = self.retries.take(Instant::now());
        changed.everything |= again.everything;
        changed.files.extend(again.files);
        self.reload_changed(changed, emit);
        self.retries.settle(Instant::now());
        Ok(())
    }

    fn reload_changed(&mut self, mut changed: Changed, emit: &mut dyn FnMut(Event)) {
        if changed.everything {
            match self.folder.files() {
                Ok(files) => {
                    changed.files.extend(files);
                    changed.files.extend(self.offers.keys().cloned());
                }
                Err(error) if is_shortage(&error) => {
                    let folder = self.folder.path().display();
                    tracing::error!(%folder, err = %error, "Failed to list manifests, trying again");
                    self.retries.changed.everything = true;
                }
                // The folder may have been moved or unmounted by mistake: keep serving.
                Err(error) => {
                    let folder = self.folder.path().display();
                    tracing::error!(%folder, err = %error, "Manifests are gone, keeping their last content");
                    return;
                }
            }
        }
        self.reload_files(changed.files, emit);
    }

    /// Reads the files with the current addresses of the node. If these cannot be listed, reads the files with the last known
    /// addresses, or not at all if there are none, and again later.
    fn reload_files(&mut self, files: BTreeSet<OsString>, emit: &mut dyn FnMut(Event)) {
        if files.is_empty() {
            return;
        }
        match (self.list_own_addresses)() {
            Ok(own) => self.own_addresses = Some(own),
            Err(error) => {
                tracing::error!(err = %error, "Failed to list the node's addresses, trying again");
                self.retries.changed.files.extend(files.iter().cloned());
            }
        }
        let Some(own) = self.own_addresses.clone() else { return };
        for file in files {
            self.reload(&file, &own, emit);
        }
    }

    fn reload(&mut self, file: &OsStr, own: &[IpAddr], emit: &mut dyn FnMut(Event)) {
        let path = self.folder.path().join(file);
        let shown = path.display();
        self.rejected.remove(file);
        match read(&path, own) {
            Ok(content) => {
                for problem in &content.foreign {
                    tracing::info!(file = %shown, reason = %problem, "Ignoring object in manifest");
                }
                for (_, problem) in &content.refused {
                    tracing::error!(file = %shown, err = %problem, "Refusing object in manifest");
                }
                if !content.refused.is_empty() {
                    let reasons = content.refused.iter().map(|(_, problem)| problem.to_string()).collect();
                    self.rejected.insert(file.into(), reasons);
                }
                if content == Content::default() {
                    tracing::info!(file = %shown, "Manifest holds no objects");
                }
                self.take(file, content, own, emit);
            }
            Err(Unreadable::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                if path.is_symlink() {
                    tracing::warn!(file = %shown, "Manifest is a link to nothing");
                }
                self.take(file, Content::default(), own, emit);
            }
            Err(error) => {
                let kept = self.offers.get(file).map_or(0, BTreeSet::len);
                tracing::error!(file = %shown, err = %error, keptObjects = kept, "Failed to read manifest");
                if matches!(&error, Unreadable::Io(error) if is_shortage(error)) {
                    self.retries.changed.files.insert(file.into());
                }
                self.rejected.insert(file.into(), vec![error.to_string()]);
            }
        }
    }

    /// Replaces the content of a file.
    fn take(&mut self, file: &OsStr, content: Content, own: &[IpAddr], emit: &mut dyn FnMut(Event)) {
        let before = self.offers.remove(file).unwrap_or_default();
        // Keep the last valid version of an object that is now rejected.
        let refused = content.refused.into_iter().filter_map(|(key, _)| key);
        let mut offered: BTreeSet<ObjectKey> = refused.filter(|key| before.contains(key)).collect();
        for object in content.objects {
            if self.is_ours(&object) {
                offered.insert(self.offer(file, object, emit));
            }
        }
        let gone = before.difference(&offered);
        let heirs: BTreeSet<OsString> = gone.filter_map(|key| self.withdraw(file, key, emit)).collect();
        if !offered.is_empty() {
            self.offers.insert(file.into(), offered);
        }
        for heir in heirs {
            self.reload(&heir, own, emit);
        }
    }

    /// Selects objects as the API server does by label and field selectors.
    fn is_ours(&self, object: &Object) -> bool {
        match object {
            Object::Service(service) => {
                service.metadata.labels.service_proxy_name.is_none() && service.spec.cluster_ip != "None"
            }
            Object::EndpointSlice(slice) => slice.metadata.labels.headless.is_none(),
            Object::Node(node) => *node.metadata.name == *self.node_name,
            Object::ServiceCidr(_) => true,
        }
    }

    fn offer(&mut self, file: &OsStr, object: Object, emit: &mut dyn FnMut(Event)) -> ObjectKey {
        let key = object.key();
        let files = self.files_of.entry(key.clone()).or_default();
        files.insert(file.into());
        if files.first().is_some_and(|first| first == file) {
            emit(applied(object));
        }
        if files.len() > 1 {
            let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
            let files = files.join(" ");
            tracing::warn!(object = %key, files, "Object is in several manifests, the first one counts");
        }
        key
    }

    /// Returns the file that has to be read again because it contains the same object.
    fn withdraw(&mut self, file: &OsStr, key: &ObjectKey, emit: &mut dyn FnMut(Event)) -> Option<OsString> {
        let files = self.files_of.get_mut(key)?;
        let counted = files.first().is_some_and(|first| first == file);
        files.remove(file);
        if files.is_empty() {
            self.files_of.remove(key);
            emit(deleted(key));
            return None;
        }
        files.first().filter(|_| counted).cloned()
    }
}

fn read(path: &Path, own: &[IpAddr]) -> Result<Content, Unreadable> {
    // Checked before opening, because opening a named pipe would block.
    if !path.metadata()?.is_file() {
        return Err(Unreadable::NotAFile);
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(Unreadable::TooLarge);
    }
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    Ok(manifest::read(&bytes, if is_json { Form::Json } else { Form::Yaml }, own)?)
}

fn applied(object: Object) -> Event {
    match object {
        Object::Service(service) => Event::ServiceApplied(service),
        Object::EndpointSlice(slice) => Event::SliceApplied(slice),
        Object::Node(node) => Event::NodeApplied(node),
        Object::ServiceCidr(cidr) => Event::ServiceCidrApplied(cidr),
    }
}

fn deleted(key: &ObjectKey) -> Event {
    let name = || NamespacedName::new(&key.namespace, &key.name);
    match key.kind {
        ObjectKind::Service => Event::ServiceDeleted(name()),
        ObjectKind::EndpointSlice => Event::SliceDeleted(name()),
        ObjectKind::Node => Event::NodeDeleted,
        ObjectKind::ServiceCidr => Event::ServiceCidrDeleted(key.name.clone()),
    }
}

#[cfg(test)]
mod tests;
