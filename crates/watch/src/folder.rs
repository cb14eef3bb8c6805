//! Reports which files of a folder changed, by inotify.
//!
//! A file may be a chain of symbolic links (a mounted ConfigMap is a directory of links into another one that is swapped as
//! a whole), and so may the folder. Every link is watched in its directory, so that any change of where a path leads is noticed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A folder of files with one of several extensions. Other files, hidden files and subdirectories are ignored.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    extensions: &'static [&'static str],
    inotify: OwnedFd,
    /// The watched directories by watch descriptor.
    watches: HashMap<i32, PathBuf>,
    /// The links that lead to the folder itself.
    to_folder: Vec<Place>,
    /// For each file that is a link, the links that lead to it.
    to_files: BTreeMap<OsString, Vec<Place>>,
}

/// A directory, whose path has no links, and a name in it.
type Place = (PathBuf, OsString);

/// What has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    pub files: BTreeSet<OsString>,
    /// Anything: the folder was replaced, or events were lost.
    pub everything: bool,
}

impl Folder {
    pub fn open(path: &Path, extensions: &'static [&'static str]) -> io::Result<Self> {
        let mut folder = Self {
            path: std::path::absolute(path)?,
            extensions,
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            watches: HashMap::new(),
            to_folder: Vec::new(),
            to_files: BTreeMap::new(),
        };
        // Watch before reading, so that a change in between is seen twice rather than never.
        folder.watch_folder()?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all files, sorted.
    pub fn files(&mut self) -> io::Result<Vec<OsString>> {
        self.watch_folder()?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            if self.wants(&name) {
                files.push(name);
            }
        }
        files.sort();
        self.to_files.clear();
        self.watch_links(&files);
        Ok(files)
    }

    /// Waits for a change, at most for `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Changed> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let changed = self.read_events()?;
            if changed != Changed::default() {
                let files: Vec<_> = changed.files.iter().cloned().collect();
                self.watch_links(&files);
                return Ok(changed);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(changed);
            }
            let left = left
                .map(|left| Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
            match poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read_events(&mut self) -> io::Result<Changed> {
        let mut changed = Changed::default();
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut forgotten = Vec::new();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let flags = event.events();
            if flags.contains(ReadFlags::IGNORED) {
                forgotten.push(event.wd());
            }
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.everything = true;
            }
            let Some(directory) = self.watches.get(&event.wd()) else { continue };
            match event.file_name() {
                Some(name) => {
                    let name = OsStr::from_bytes(name.to_bytes());
                    let is_new = flags.contains(ReadFlags::CREATE);
                    if !(is_new && is_being_written(&directory.join(name))) {
                        self.note(directory, name, &mut changed);
                    }
                }
                // The directory itself was removed: find out what to watch in its place.
                None => changed.everything |= self.leads_to_folder(directory),
            }
        }
        for watch in forgotten {
            self.watches.remove(&watch);
        }
        Ok(changed)
    }

    fn note(&self, directory: &Path, name: &OsStr, changed: &mut Changed) {
        let here = |places: &[Place]| places.iter().any(|(dir, link)| dir == directory && link == name);
        changed.everything |= here(&self.to_folder);
        if self.is_folder(directory) && self.wants(name) {
            changed.files.insert(name.to_owned());
        }
        let linked = self.to_files.iter().filter(|(_, places)| here(places));
        changed.files.extend(linked.map(|(file, _)| file.clone()));
    }

    fn wants(&self, name: &OsStr) -> bool {
        let hidden = name.as_bytes().starts_with(b".");
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        !hidden && extension.is_some_and(|extension| self.extensions.contains(&extension))
    }

    /// Whether this directory is the folder.
    fn is_folder(&self, directory: &Path) -> bool {
        self.to_folder.last().is_some_and(|(parent, name)| directory == parent.join(name))
    }

    fn leads_to_folder(&self, directory: &Path) -> bool {
        self.is_folder(directory) || self.to_folder.iter().any(|(dir, _)| dir == directory)
    }

    fn watch_folder(&mut self) -> io::Result<()> {
        self.to_folder = places(&self.path);
        // Remove watches first: a directory that was moved keeps its watch under the old name.
        self.rewatch(true)?;
        Ok(())
    }

    /// Resolves the links of these files again.
    fn watch_links(&mut self, files: &[OsString]) {
        let mut moved = false;
        for file in files {
            let path = self.path.join(file);
            let found = if path.is_symlink() { places(&path) } else { Vec::new() };
            let before = if found.is_empty() {
                self.to_files.remove(file).unwrap_or_default()
            } else {
                self.to_files.insert(file.clone(), found.clone()).unwrap_or_default()
            };
            moved |= before != found;
        }
        if moved && let Err(error) = self.rewatch(false) {
            tracing::error!(folder = %self.path.display(), err = %error, "Failed to watch for changes");
        }
    }

    fn rewatch(&mut self, afresh: bool) -> io::Result<()> {
        let files = self.to_files.values().flatten();
        let mut needed: HashSet<PathBuf> = files.chain(&self.to_folder).map(|(dir, _)| dir.clone()).collect();
        needed.extend(self.to_folder.last().map(|(parent, name)| parent.join(name)));
        self.watches.retain(|watch, directory| {
            let keep = !afresh && needed.contains(directory);
            if !keep {
                // Fails for a directory that was removed, which needs no further action.
                let _ = inotify::remove_watch(&self.inotify, *watch);
            }
            keep
        });
        let watched: HashSet<PathBuf> = self.watches.values().cloned().collect();
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for directory in needed.difference(&watched) {
            match inotify::add_watch(&self.inotify, directory, flags) {
                Ok(watch) => {
                    self.watches.insert(watch, directory.clone());
                }
                // Its parent directory reports when it is created.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => {
                    let message = format!("watching {}: {error}", directory.display());
                    return Err(io::Error::new(io::Error::from(error).kind(), message));
                }
            }
        }
        Ok(())
    }
}

/// A regular file that was created is about to be written, and another event follows when it is closed. Links and hard links
/// are complete when they appear.
fn is_being_written(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.nlink() == 1)
}

/// Every directory entry that determines where a path leads: all links, and finally the file itself.
fn places(path: &Path) -> Vec<Place> {
    const MAX_LINKS: usize = 40; // the limit of the kernel
    let mut places = Vec::new();
    let mut links = 0;
    let mut at = PathBuf::from("/");
    let mut rest: Vec<OsString> = names_reversed(path);
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match fs::read_link(&next) {
            Ok(target) if links < MAX_LINKS => {
                links += 1;
                places.push((at.clone(), name));
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(names_reversed(&target));
            }
            _ if rest.is_empty() || !next.exists() => {
                places.push((at, name));
                return places;
            }
            _ => at = next,
        }
    }
    places
}

fn names_reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests;
