//! Which files of a folder changed, as the kernel tells it: nothing is polled.
//!
//! A file may be there by a chain of symbolic links (a mounted ConfigMap is one directory of links into another that
//! is swapped whole), and so may the folder. Every link on the way is watched where it lies, so that whatever makes
//! the path lead elsewhere is noticed.

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

/// A folder of files with one of the wanted extensions. Others, hidden ones and sub-folders are not there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    extensions: &'static [&'static str],
    inotify: OwnedFd,
    /// Every directory watched, by the number the kernel calls it.
    watches: HashMap<i32, PathBuf>,
    /// What leads to the folder itself.
    to_folder: Vec<Place>,
    /// What leads to each file that is a link.
    to_files: BTreeMap<OsString, Vec<Place>>,
}

/// A name in a directory, both free of links.
type Place = (PathBuf, OsString);

/// What to look at again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    pub files: BTreeSet<OsString>,
    /// The folder is another one, or the kernel lost count.
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
        // Watching comes before looking: what changes in between is then seen twice rather than never.
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

    /// Waits until something changed, or until `patience` has run out.
    pub fn wait(&mut self, patience: Option<Duration>) -> io::Result<Changed> {
        let deadline = patience.map(|patience| Instant::now() + patience);
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
                // The directory itself went, and what is watched in its place has to be found out.
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

    /// Whether this is where the folder really is.
    fn is_folder(&self, directory: &Path) -> bool {
        self.to_folder.last().is_some_and(|(parent, name)| directory == parent.join(name))
    }

    fn leads_to_folder(&self, directory: &Path) -> bool {
        self.is_folder(directory) || self.to_folder.iter().any(|(dir, _)| dir == directory)
    }

    fn watch_folder(&mut self) -> io::Result<()> {
        self.to_folder = places(&self.path);
        // Let go of watches first: a directory moved away keeps its watch, and its old name with it.
        self.rewatch(true)?;
        Ok(())
    }

    /// Finds out anew what leads to these files; links are few where files are many, and swapped together.
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
        let mut wanted: HashSet<PathBuf> = files.chain(&self.to_folder).map(|(dir, _)| dir.clone()).collect();
        wanted.extend(self.to_folder.last().map(|(parent, name)| parent.join(name)));
        self.watches.retain(|watch, directory| {
            let keep = !afresh && wanted.contains(directory);
            if !keep {
                // It fails for a directory that is gone, and then there is nothing left to do.
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
        for directory in wanted.difference(&watched) {
            match inotify::add_watch(&self.inotify, directory, flags) {
                Ok(watch) => {
                    self.watches.insert(watch, directory.clone());
                }
                // It will show in the directory above it when it comes.
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

/// A plain file that has just been made is about to be written; we are told when that is done. Links, and files that
/// were linked in, are complete when they appear.
fn is_being_written(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.nlink() == 1)
}

/// Every name that decides where a path leads: each link on the way, and last the thing itself.
fn places(path: &Path) -> Vec<Place> {
    const MOST_LINKS: usize = 40; // as the kernel
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
            Ok(target) if links < MOST_LINKS => {
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
