//! The commands of one variant in a folder of their own, with a lock of their own, where they can be made to fail.

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
    /// Each is a script that becomes the real one. It is one that nobody writes to: what a thread writes, a process that
    /// another thread starts at that moment has open for a while, too, and for so long nobody can execute it.
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

    /// What they lock, instead of what all of the machine locks.
    pub fn lock(&self) -> PathBuf {
        self.path("lock")
    }

    /// Makes the command do this before it does what it should.
    pub fn rewrite(&self, name: &str, first: &str) {
        // It may be about to read it: all of the old or all of the new.
        let new = self.path("new");
        fs::write(&new, first).unwrap();
        fs::rename(new, self.path("first").join(name)).unwrap();
    }

    /// Makes the command fail the next time, and only then.
    pub fn fail_once(&self, name: &str) {
        let sign = self.path("fail");
        fs::write(&sign, "").unwrap();
        let sign = sign.display();
        self.rewrite(
            name,
            &format!("if rm {sign} 2>/dev/null; then echo '{name}: line 2 failed' >&2; exit 1; fi"),
        );
    }

    pub fn programs(&self) -> Arc<Programs> {
        Arc::new(Programs::of(self.folder.path()))
    }

    /// As a stranger would run it, without a shell: words are parted by blanks.
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

    /// What a firewall does that thinks it is alone.
    pub fn flush(&self, family: Family) {
        self.restore(family, "*mangle\n-F\n-X\nCOMMIT\n*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n");
    }

    /// All rules of a table.
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
