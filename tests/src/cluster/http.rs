//! One plain HTTP request from within a namespace.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::namespace::Namespace;

const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Answer {
    pub code: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

pub fn get(from: &Namespace, to: SocketAddr, path: &str) -> io::Result<Answer> {
    from.enter(|| ask(to, &format!("GET {path} HTTP/1.0\r\nHost: {to}\r\n\r\n")))
}

pub fn post(from: &Namespace, to: SocketAddr, path: &str, body: &str) -> io::Result<Answer> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: {to}\r\nContent-Type: application/json\r\n");
    from.enter(|| ask(to, &format!("{head}Content-Length: {length}\r\n\r\n{body}")))
}

/// HTTP/1.0: the end of the connection is the end of the answer.
fn ask(to: SocketAddr, request: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    parse(&text).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("not an answer: {text:?}")))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let code = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    };
    Some(Answer { code, headers: lines.map(header).collect::<Option<_>>()?, body: body.into() })
}
