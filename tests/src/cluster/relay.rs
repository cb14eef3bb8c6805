//! A TCP relay to the API server whose connections a test can cut.

use std::io::{self, PipeWriter};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use testkit::namespace::Namespace;

/// Forwards connections until dropped.
#[derive(Debug)]
pub struct Relay {
    state: Arc<Mutex<State>>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    streams: Vec<TcpStream>,
}

impl Relay {
    pub fn start(namespace: &Namespace, at: SocketAddr, to: SocketAddr) -> Self {
        let listener = namespace.enter(|| TcpListener::bind(at)).unwrap();
        let (stopped, stop) = io::pipe().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let (shared, namespace) = (state.clone(), namespace.clone());
        let forward = move || {
            namespace.move_in();
            let ends = [listener.as_fd(), stopped.as_fd()];
            let mut polled = ends.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            while poll(&mut polled, None).is_err() || polled[1].revents().is_empty() {
                if let Ok((client, _)) = listener.accept() {
                    // On failure the client's connection is closed.
                    let _ = connect(&client, to, &shared);
                }
            }
        };
        Self { state, stop: Some(stop), thread: Some(std::thread::spawn(forward)) }
    }

    /// Closes all connections, in the middle of whatever they carry. New ones are accepted.
    pub fn cut(&self) {
        for stream in self.state.lock().unwrap().streams.drain(..) {
            // Fails if the connection has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes all connections, and new ones at once, until [`Self::reopen`].
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
        self.cut();
    }

    pub fn reopen(&self) {
        self.state.lock().unwrap().is_closed = false;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn connect(client: &TcpStream, to: SocketAddr, state: &Mutex<State>) -> io::Result<()> {
    let mut state = state.lock().unwrap();
    if state.is_closed {
        return client.shutdown(Shutdown::Both);
    }
    let server = TcpStream::connect(to)?;
    for (from, to) in [(client, &server), (&server, client)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        let forward = move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        };
        std::thread::spawn(forward);
    }
    state.streams.extend([client.try_clone()?, server]);
    Ok(())
}
