//! Detects writes to the configuration file: the process then ends, and kubelet restarts it with the new configuration.
//!
//! Exactly the changes that upstream detects are detected. Replacing the file by renaming another one over it, as with a mounted
//! ConfigMap, is not: operators restart the pods when it suits them.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, anyhow};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

#[derive(Debug)]
pub struct FileWatch {
    inotify: OwnedFd,
    path: String,
}

impl FileWatch {
    pub fn open(path: &str) -> anyhow::Result<Self> {
        let context = || format!("watching {path}");
        let inotify = inotify::init(CreateFlags::CLOEXEC).with_context(context)?;
        let events = WatchFlags::MODIFY | WatchFlags::MOVE_SELF;
        inotify::add_watch(&inotify, path, events).with_context(context)?;
        Ok(Self { inotify, path: path.to_owned() })
    }

    /// Returns when the file was written to or renamed, with the reason to stop.
    pub fn wait(self) -> anyhow::Error {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().intersects(ReadFlags::MODIFY | ReadFlags::MOVE_SELF) => {
                    return anyhow!("content of the proxy server's configuration file was updated");
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return anyhow::Error::from(error).context(format!("watching {}", self.path)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_writing_in_place_and_renaming_away_are_detected() {
        for (change, is_detected) in [
            ("write", true),
            ("truncate", true),
            ("rename away", true),
            ("touch", false),
            ("chmod", false),
            ("rename over", false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("config.conf");
            fs::write(&file, "a").unwrap();
            let watch = FileWatch::open(file.to_str().unwrap()).unwrap();
            let (send, detected) = channel();
            std::thread::spawn(move || send.send(watch.wait().to_string()));
            match change {
                "write" => fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"b").unwrap(),
                "truncate" => drop(fs::File::create(&file).unwrap()),
                "rename away" => fs::rename(&file, folder.path().join("other")).unwrap(),
                "touch" => {
                    let then = std::time::UNIX_EPOCH;
                    let times = fs::FileTimes::new().set_accessed(then).set_modified(then);
                    fs::File::open(&file).unwrap().set_times(times).unwrap();
                }
                "chmod" => {
                    let mut mode = fs::metadata(&file).unwrap().permissions();
                    mode.set_readonly(true);
                    fs::set_permissions(&file, mode).unwrap();
                }
                _ => {
                    let new = folder.path().join("new");
                    fs::write(&new, "b").unwrap();
                    fs::rename(new, &file).unwrap();
                }
            }
            // The absence of a message can only be waited for; a message arrives immediately.
            let timeout = Duration::from_millis(if is_detected { 10_000 } else { 100 });
            let reason = detected.recv_timeout(timeout).ok();
            let want = is_detected
                .then(|| "content of the proxy server's configuration file was updated".to_owned());
            assert_eq!(reason, want, "{change}");
        }
    }
}
