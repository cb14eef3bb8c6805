//! Plain HTTP/1.0 requests from a namespace.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::namespace::Namespace;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub code: u16,
    /// With names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

pub fn get(from: &Namespace, to: SocketAddr, path: &str) -> io::Result<HttpResponse> {
    from.enter(|| request(to, &format!("GET {path} HTTP/1.0\r\nHost: {to}\r\n\r\n")))
}

pub fn post(from: &Namespace, to: SocketAddr, path: &str, body: &str) -> io::Result<HttpResponse> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: {to}\r\nContent-Type: application/json\r\n");
    from.enter(|| request(to, &format!("{head}Content-Length: {length}\r\n\r\n{body}")))
}

/// In HTTP/1.0 the response ends with the connection.
fn request(to: SocketAddr, text: &str) -> io::Result<HttpResponse> {
    let mut stream = TcpStream::connect_timeout(&to, REQUEST_TIMEOUT)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    parse(&response).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("not HTTP: {response:?}")))
}

fn parse(text: &str) -> Option<HttpResponse> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let code = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    };
    Some(HttpResponse { code, headers: lines.map(header).collect::<Option<_>>()?, body: body.into() })
}
