//! The commands of one variant in a folder and with a lock of their own, where a test can make them fail.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use kernel::iptables::{Programs, Variant};
use model::address::Family;
use tempfile::TempDir;

pub const VARIANTS: [Variant; 2] = [Variant::Legacy, Variant::Nft];

const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iptables/stand-in");

pub struct Commands {
    folder: TempDir,
}

impl Commands {
    /// Each command is a link to a script that replaces itself by the real command. The script is a file of the repository: a file
    /// that this process has just written may be inherited by a child of another thread, and cannot be executed as long as that
    /// child has it open for writing.
    pub fn of(variant: Variant) -> Self {
        let binary = match variant {
            Variant::Legacy => "/usr/sbin/xtables-legacy-multi",
            Variant::Nft => "/usr/sbin/xtables-nft-multi",
        };
        assert!(fs::exists(binary).unwrap(), "install iptables: hack/setup");
        let commands = Self { folder: tempfile::tempdir().unwrap() };
        ["real", "first"].iter().for_each(|folder| fs::create_dir(commands.path(folder)).unwrap());
        for family in ["iptables", "ip6tables"] {
            for name in [family, &format!("{family}-save"), &format!("{family}-restore")] {
                symlink(binary, commands.path("real").join(name)).unwrap();
                symlink(STAND_IN, commands.path(name)).unwrap();
                commands.rewrite(name, "");
            }
        }
        commands
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The lock file of these commands, which other processes of the machine do not use.
    pub fn lock(&self) -> PathBuf {
        self.path("lock")
    }

    /// Makes the command run `first` before the real command.
    pub fn rewrite(&self, name: &str, first: &str) {
        // Replaced at once, since a command may be about to read it.
        let new = self.path("new");
        fs::write(&new, first).unwrap();
        fs::rename(new, self.path("first").join(name)).unwrap();
    }

    /// Makes the next run of the command fail.
    pub fn fail_once(&self, name: &str) {
        let marker = self.path("fail");
        fs::write(&marker, "").unwrap();
        let marker = marker.display();
        self.rewrite(
            name,
            &format!("if rm {marker} 2>/dev/null; then echo '{name}: line 2 failed' >&2; exit 1; fi"),
        );
    }

    pub fn programs(&self) -> Arc<Programs> {
        Arc::new(Programs::of(self.folder.path()))
    }

    /// Runs a command as a foreign writer would. There is no shell: blanks separate the arguments.
    pub fn run(&self, command: &str) -> String {
        let output = self.try_run(command);
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn try_run(&self, command: &str) -> Output {
        let mut words = command.split_whitespace();
        let program = self.path("real").join(words.next().unwrap());
        let mut command = Command::new(program);
        command.env("XTABLES_LOCKFILE", self.lock()).args(words).output().unwrap()
    }

    pub fn restore(&self, family: Family, text: &str) {
        let name = format!("{}-restore", iptables(family));
        let mut command = Command::new(self.path("real").join(name));
        command.env("XTABLES_LOCKFILE", self.lock()).args(["--noflush", "--counters"]);
        let input = self.path("input");
        fs::write(&input, text).unwrap();
        let output = command.stdin(Stdio::from(fs::File::open(input).unwrap())).output().unwrap();
        assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    }

    /// Flushes all tables, as a firewall does that assumes no other program uses them.
    pub fn flush(&self, family: Family) {
        self.restore(family, "*mangle\n-F\n-X\nCOMMIT\n*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n");
    }

    /// A table in the format of `iptables-save`.
    pub fn save(&self, family: Family, table: &str) -> String {
        self.run(&format!("{}-save -t {table}", iptables(family)))
    }
}

pub fn iptables(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}
