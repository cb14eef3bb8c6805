//! A scripted API server for tests, with HTTP/1.1 or TLS.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::client::{Api, Settings, Unobserved};
use crate::wire::{PROTOBUF, Wire};

/// Longer than anything here takes, even on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Asked {
    pub fn new(method: &str, target: &str, headers: BTreeMap<String, String>, body: String) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = query.map(|(key, value)| (key.to_owned(), unescape(value))).collect();
        Self { method: method.to_owned(), path: path.to_owned(), query, headers, body }
    }

    pub fn query(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }

    pub fn is_watch(&self) -> bool {
        self.query("watch") == "true"
    }

    /// The encoding that the client prefers.
    pub fn wire(&self) -> Wire {
        let accepts_protobuf = self.headers.get("accept").is_some_and(|accept| accept.starts_with(PROTOBUF));
        if accepts_protobuf { Wire::Protobuf } else { Wire::Json }
    }
}

pub trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

/// The server's side of one exchange. Dropping a stream before its end closes the connection.
pub struct Talk<'a> {
    connection: &'a mut dyn Connection,
    /// The encoding of what the server sends.
    wire: Wire,
    ended: bool,
}

impl Talk<'_> {
    pub fn object(&mut self, code: u16, object: &Value) {
        let content_type = format!("Content-Type: {}\r\n", self.wire.content_type());
        self.answer(code, &content_type, &self.wire.encode(object));
    }

    pub fn answer(&mut self, code: u16, headers: &str, body: &[u8]) {
        let length = body.len();
        let _ = write!(self.connection, "HTTP/1.1 {code} Said\r\n{headers}Content-Length: {length}\r\n\r\n");
        let _ = self.connection.write_all(body);
        let _ = self.connection.flush();
        self.ended = true;
    }

    pub fn refuse(&mut self, code: u16, reason: &str, message: &str) {
        let status =
            serde_json::json!({"kind": "Status", "code": code, "reason": reason, "message": message});
        self.object(code, &status);
    }

    pub fn begin(&mut self) {
        let content_type = self.wire.content_type();
        let _ = write!(
            self.connection,
            "HTTP/1.1 200 OK\r\nContent-Type: {content_type};stream=watch\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let _ = self.connection.flush();
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = write!(self.connection, "{:x}\r\n", bytes.len());
        let _ = self.connection.write_all(bytes);
        let _ = self.connection.write_all(b"\r\n");
        let _ = self.connection.flush();
    }

    pub fn event(&mut self, kind: &str, object: &Value) {
        self.raw(&self.wire.encode_event(kind, object));
    }

    /// An event that ends in its middle.
    pub fn half_event(&mut self, kind: &str, object: &Value) {
        let event = self.wire.encode_event(kind, object);
        self.raw(&event[..event.len() / 2]);
    }

    /// An event in chunks of one byte.
    pub fn slow_event(&mut self, kind: &str, object: &Value) {
        for byte in self.wire.encode_event(kind, object) {
            self.raw(&[byte]);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn end(&mut self) {
        let _ = self.connection.write_all(b"0\r\n\r\n");
        let _ = self.connection.flush();
        self.ended = true;
    }

    /// Keeps the connection open without sending anything until the test ends.
    pub fn stay(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

pub struct Stub {
    pub address: SocketAddr,
    asked: Mutex<Receiver<Asked>>,
}

type Script = Arc<dyn Fn(&Asked, &mut Talk<'_>) + Send + Sync>;

impl Stub {
    pub fn start(script: impl Fn(&Asked, &mut Talk<'_>) + Send + Sync + 'static) -> Self {
        Self::serve(script, |socket| Box::new(socket))
    }

    /// Like `start`, with TLS. The certificate is self-signed and written to `ca`.
    pub fn start_tls(ca: &Path, script: impl Fn(&Asked, &mut Talk<'_>) + Send + Sync + 'static) -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(ca, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key).unwrap());
        Self::serve(script, move |socket| {
            Box::new(StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket))
        })
    }

    fn serve(
        script: impl Fn(&Asked, &mut Talk<'_>) + Send + Sync + 'static,
        wrap: impl Fn(TcpStream) -> Box<dyn Connection> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asked) = channel();
        let script: Script = Arc::new(script);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (script, sender) = (script.clone(), sender.clone());
                let mut connection = BufReader::new(wrap(socket));
                std::thread::spawn(move || {
                    while let Some(asked) = read(&mut connection) {
                        let _ = sender.send(asked.clone());
                        let wire = asked.wire();
                        let mut talk = Talk { connection: connection.get_mut(), wire, ended: false };
                        if asked.method == "CONNECT" {
                            talk.answer(200, "", b"");
                            continue;
                        }
                        script(&asked, &mut talk);
                        if !talk.ended {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, asked: Mutex::new(asked) }
    }

    /// The next request.
    pub fn asked(&self) -> Asked {
        self.asked.lock().unwrap().recv_timeout(TIMEOUT).expect("a request")
    }

    pub fn api(&self) -> Api {
        self.api_with(Wire::Json)
    }

    pub fn api_with(&self, wire: Wire) -> Api {
        let settings = Settings {
            master: Some(self.address.to_string()),
            content_type: wire.content_type().into(),
            qps: -1.0,
            ..Settings::default()
        };
        Api::open(&settings, Arc::new(Unobserved)).unwrap()
    }
}

fn read(connection: &mut impl BufRead) -> Option<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut words = lines.first()?.split(' ').map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let headers = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
    let headers: BTreeMap<_, _> =
        headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    connection.read_exact(&mut body).ok()?;
    Some(Asked::new(&method, &target, headers, String::from_utf8(body).ok()?))
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex: Vec<u8> = rest.by_ref().take(2).collect();
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}
