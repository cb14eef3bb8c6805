//! The proxy as a process that serves a folder of manifests, in the network namespace of the calling thread.
#![allow(dead_code, reason = "each test uses some of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::patience::{Deadline, Patient};

/// A running proxy, killed when dropped.
pub struct Proxy {
    pub child: Child,
    lines: Receiver<String>,
    pub unread: Vec<String>,
}

impl Proxy {
    pub fn start(folder: &Path, flags: &[&str]) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_kube-proxy")), folder, flags)
    }

    pub fn run(mut command: Command, folder: &Path, flags: &[&str]) -> Self {
        let mut child = command
            .args([
                "--proxy-mode=nftables",
                "--hostname-override=node-1",
                "-v=2",
                "--iptables-min-sync-period=0",
                "--conntrack-max-per-core=0",
            ])
            .args(flags)
            .arg("--manifests")
            .arg(folder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        Self { child, lines, unread: Vec::new() }
    }

    /// The first line that contains all of these and has not been asked for before.
    pub fn wait_for(&mut self, parts: &[&str]) -> String {
        let mut deadline = Deadline::after(Duration::from_secs(20));
        loop {
            if let Some(at) = self.unread.iter().position(|line| parts.iter().all(|part| line.contains(part)))
            {
                return self.unread.remove(at);
            }
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => self.unread.push(line),
                Err(RecvTimeoutError::Timeout) if !deadline.has_passed() => {}
                Err(_) => panic!("no line with {parts:?} in\n{}", self.unread.join("\n")),
            }
        }
    }

    pub fn wait_for_pass(&mut self, family: &str) -> String {
        self.wait_for(&["\"SyncProxyRules complete\"", family])
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let rest: Vec<_> = self.lines.iter().collect();
            println!("the log of the proxy:\n{}\n{}", self.unread.join("\n"), rest.join("\n"));
        }
    }
}

pub fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  clusterIP: {ip}
  ports:
  - port: 80
"
    )
}

pub fn slice(service: &str, endpoint: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints:
- addresses: [{endpoint}]
"
    )
}

/// The status code that the health port answers with; `None` if there is no answer.
pub fn probe(path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 10256)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    Patient(stream, Duration::from_secs(5)).read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// The same once there is an answer.
pub fn answer(path: &str) -> u16 {
    let mut code = None;
    wait_until("the health port answers", || {
        code = probe(path);
        code.is_some()
    });
    code.unwrap()
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut deadline = Deadline::after(Duration::from_secs(30));
    while !is_so() {
        assert!(!deadline.has_passed(), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
