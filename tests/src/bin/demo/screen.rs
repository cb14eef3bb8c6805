//! Output that fits the terminal, in colour only on a terminal.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use rustix::termios::tcgetwinsize;

/// The width if stdout is not a terminal.
const DEFAULT_WIDTH: usize = 80;

/// Narrower terminals wrap lines themselves.
const MIN_WIDTH: usize = 40;

/// The column after the time at which the text of a log line begins.
const INDENT: usize = 9;

/// From this width on no line has to be wrapped.
const WIDE: usize = 120;

#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: usize,
    pub has_colours: bool,
}

impl Screen {
    /// The terminal of stdout.
    pub fn stdout() -> Self {
        let stdout = std::io::stdout();
        let columns = tcgetwinsize(&stdout).map_or(0, |size| size.ws_col.into());
        Self {
            width: if columns == 0 { DEFAULT_WIDTH } else { columns.max(MIN_WIDTH) },
            has_colours: stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    pub fn is_wide(self) -> bool {
        self.width >= WIDE
    }

    pub fn introduction(self, flags: &[String]) -> String {
        format!(
            "{}: a node, three pods and a client, each a network namespace

  client 192.0.2.200 --- 192.0.2.11 node 10.244.0.1 -+- pod-a 10.244.0.5
                                                     +- pod-b 10.244.0.6
  web  10.96.0.10:80 and node port 30080, TCP        +- pod-c 10.244.0.7
  dns  10.96.0.53:53, UDP

In the node runs kube-proxy, with a copy of examples/demo to edit:

  {}
",
            self.strong("Sluice demo"),
            self.strong(&self.command("kube-proxy", flags))
        )
    }

    /// A shell command, wrapped with backslashes.
    fn command(self, program: &str, flags: &[String]) -> String {
        let mut lines = vec![format!("  {program}")];
        for flag in flags {
            // Two columns are for the space and the backslash.
            let fits = |line: &str| line.chars().count() + 1 + flag.chars().count() + 2 <= self.width;
            match lines.last_mut() {
                Some(line) if fits(line) => *line += &format!(" {flag}"),
                _ => lines.push(format!("    {flag}")),
            }
        }
        lines.join(" \\\n").trim_start().to_owned()
    }

    /// Commands to copy, and therefore not wrapped.
    pub fn commands_to_try(self, folder: &Path, log: &Path, node: &str, proxy: &Path) -> String {
        let (folder, log, proxy) = (folder.display(), log.display(), proxy.display());
        format!(
            "Still running. In another terminal, as root:

  edit {folder}/web-endpoints.yaml
  tail -f {log}
  nsenter --net={node} {proxy} top
  nsenter --net={node} nft list map ip kube-proxy endpoints
  nsenter --net={node} nft list table ip kube-proxy

Ctrl-C ends it."
        )
    }

    /// A line with its time.
    pub fn line(self, at: Duration, text: &str) -> String {
        let time = format!("{:5.1} s  ", at.as_secs_f64());
        self.indented(&time, text)
    }

    /// A line that belongs to the one before.
    pub fn detail(self, text: &str) -> String {
        self.indented(&" ".repeat(INDENT), text)
    }

    fn indented(self, first: &str, text: &str) -> String {
        let lines = wrap(text, self.width.saturating_sub(INDENT));
        format!("{first}{}", lines.join(&format!("\n{}", " ".repeat(INDENT))))
    }

    pub fn strong(self, text: &str) -> String {
        self.coloured("1", text)
    }

    pub fn good(self, text: &str) -> String {
        self.coloured("32", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.coloured("31", text)
    }

    fn coloured(self, code: &str, text: &str) -> String {
        if self.has_colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Wraps between words, and within a word only if it is longer than a line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        for (number, letter) in word.chars().enumerate() {
            if used == width {
                lines.push(String::new());
                used = 0;
            }
            let line = lines.last_mut().expect("the list starts with one line");
            if number == 0 && used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push(letter);
            used += 1;
        }
    }
    lines
}

/// With one decimal below 10 ms.
pub fn milliseconds(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1_000.0;
    if milliseconds < 10.0 { format!("{milliseconds:.1} ms") } else { format!("{milliseconds:.0} ms") }
}

#[cfg(test)]
pub mod tests {
    use std::fs;

    use super::*;

    pub const SIZES: [(usize, usize); 2] = [(80, 24), (160, 50)];

    /// Compares with the file in `screens/`. UPDATE_SCREENS=1 rewrites it.
    #[track_caller]
    pub fn expect(name: &str, (width, height): (usize, usize), shown: &str) {
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines.len() <= height, "{name} has more than {height} lines:\n{shown}");
        for line in &lines {
            assert!(line.chars().count() <= width, "{name} is wider than {width} columns:\n{line}");
        }
        let file = format!("src/bin/demo/screens/{name}-{width}x{height}.txt");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        if std::env::var_os("UPDATE_SCREENS").is_some() {
            fs::write(&file, shown).unwrap();
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        assert!(shown == kept, "{} differs from this; UPDATE_SCREENS=1 accepts it:\n{shown}", file.display());
    }

    #[test]
    fn the_introduction_fits_the_screen() {
        for size in SIZES {
            let screen = Screen { width: size.0, has_colours: false };
            let flags = crate::proxy::flags(Path::new("/tmp/sluice-demo.AbC123/manifests"));
            expect("introduction", size, &screen.introduction(&flags));
        }
    }

    #[test]
    fn the_log_fits_the_screen() {
        for size in SIZES {
            let screen = Screen { width: size.0, has_colours: false };
            let at = Duration::from_millis;
            let lines = [
                screen.line(at(312), "kube-proxy started as process 4711, serving after 312 ms"),
                screen.line(at(313), "up to 750 new connections per second from now on:"),
                screen.detail("client to web's node port, pod-a to the cluster IPs of web and dns"),
                screen.line(at(12_345), "edit web-endpoints.yaml, badly: a bracket is missing"),
                screen.detail(
                    "kube-proxy: /tmp/sluice-demo.AbC123/manifests/web-endpoints.yaml: line 18 column 3: \
                     did not find expected ',' or ']' while parsing a flow sequence",
                ),
            ];
            expect("story", size, &(lines.join("\n") + "\n"));
        }
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("to be or not", 5), ["to be", "or", "not"]);
        assert_eq!(wrap("a questionable thing", 6), ["a", "questi", "onable", "thing"]);
        assert_eq!(wrap("", 6), [""]);
    }
}
