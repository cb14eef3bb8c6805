//! Plain text for a terminal of eighty columns; colours only where there is one.

use std::io::IsTerminal;
use std::time::Duration;

use crate::proxy;
use crate::stage::Stage;

pub fn introduce(stage: &Stage) {
    println!(
        "{}: a node, three pods and a client, each a network namespace

  client 192.0.2.200 --- 192.0.2.11 node 10.244.0.1 -+- pod-a 10.244.0.5
                                                     +- pod-b 10.244.0.6
  web  10.96.0.10:80 and node port 30080, TCP        +- pod-c 10.244.0.7
  dns  10.96.0.53:53, UDP

In the node runs kube-proxy, with a copy of examples/demo to edit:
",
        strong("Sluice demo")
    );
    // The first one is long, of the others two fit on a line.
    let flags = proxy::flags(stage.manifests.folder());
    let (first, others) = flags.split_first().expect("there are flags");
    let lines: Vec<_> = others.chunks(2).map(|flags| format!("    {}", flags.join(" "))).collect();
    println!("  {}\n", strong(&format!("kube-proxy {first} \\\n{}", lines.join(" \\\n"))));
}

/// For whoever wants to look around.
pub fn invite(stage: &Stage) {
    let (folder, log, node) =
        (stage.manifests.folder().display(), stage.log_file().display().to_string(), stage.node().path());
    println!(
        "Still running. In another terminal, as root:

  edit {folder}/web-endpoints.yaml
  tail -f {log}
  nsenter --net={node} nft list map ip kube-proxy endpoints
  nsenter --net={node} nft list table ip kube-proxy

Ctrl-C ends it."
    );
}

/// A line of the story.
pub fn say(at: Duration, line: &str) {
    println!("{:5.1} s  {line}", at.as_secs_f64());
}

/// As exact as makes sense.
pub fn milliseconds(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1_000.0;
    if milliseconds < 10.0 { format!("{milliseconds:.1} ms") } else { format!("{milliseconds:.0} ms") }
}

pub fn strong(text: &str) -> String {
    coloured("1", text)
}

pub fn good(text: &str) -> String {
    coloured("32", text)
}

pub fn bad(text: &str) -> String {
    coloured("31", text)
}

fn coloured(code: &str, text: &str) -> String {
    let wanted = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if wanted { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}
