use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A copy of the files of the workspace that cargo and the check read.
fn copy_workspace() -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        fs::copy(Path::new(ROOT).join(file), copy.path().join(file)).unwrap();
    }
    for folder in ["crates", "fuzz", "hack/layers", "tests"] {
        copy_folder(&Path::new(ROOT).join(folder), &copy.path().join(folder));
    }
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn replace(root: &Path, file: &str, old: &str, new: &str) {
    let file = root.join(file);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(old), "{} has no {old:?}", file.display());
    fs::write(file, text.replacen(old, new, 1)).unwrap();
}

#[test]
fn a_forbidden_dependency_is_found() {
    let copy = copy_workspace();
    for (manifest, line) in [
        ("model", "rustix"),
        ("plan", "tokio"),
        ("netlink", "model"),
        ("proxy", "clap"),
        ("settings", "kernel"),
        ("watch", "testkit"),
    ] {
        let manifest = format!("crates/{manifest}/Cargo.toml");
        replace(
            copy.path(),
            &manifest,
            "[dependencies]\n",
            &format!("[dependencies]\n{line}.workspace = true\n"),
        );
    }
    let found = dependencies::check(&Workspace::read(copy.path()).unwrap());
    for want in [
        "crate model must not depend on rustix (through model)",
        "crate plan must not depend on rustix (through ",
        "crate plan must not depend on tokio (through plan)",
        "crate netlink must not depend on model",
        "crate netlink must not depend on serde (through model)",
        "crate proxy must not depend on clap (through proxy)",
        "crate settings must not depend on kernel",
        "crate watch must not depend on testkit",
    ] {
        assert!(found.iter().any(|violation| violation.starts_with(want)), "{want}: {found:#?}");
    }
}

#[test]
fn a_crate_without_a_layer_is_found() {
    let copy = copy_workspace();
    replace(copy.path(), "crates/watch/Cargo.toml", "name = \"watch\"", "name = \"unlisted\"");
    replace(copy.path(), "Cargo.toml", "watch = {", "watch = { package = \"unlisted\",");
    let found = dependencies::check(&Workspace::read(copy.path()).unwrap());
    assert!(found.iter().any(|violation| violation.starts_with("crate unlisted has no layer")), "{found:#?}");
}

/// The violations in a crate with these files.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    modules::check(&source::read(folder.path(), &folder.path().join("lib.rs")).unwrap())
}

#[test]
fn a_cycle_of_four_modules_is_found_and_one_of_three_is_not() {
    let three = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "pub struct B; fn f() { super::c::g() }"),
        ("c.rs", "pub fn g() { println!(\"{}\", crate::a::A) }"),
    ];
    assert_eq!(cycles(&three), [""; 0]);
    let four = [
        ("lib.rs", "mod a; mod b; mod c; mod d; use d::D;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "pub struct B; fn f() { super::c::g() }"),
        // Through an import of the root, and from within a macro.
        ("c.rs", "use crate::D; pub fn g() {}"),
        ("d.rs", "mod inner; pub struct D;"),
        ("d/inner.rs", "fn f() { println!(\"{}\", crate::a::A) }"),
    ];
    let found = cycles(&four);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("4 modules use each other: a, b, c, d\n"), "{found:?}");
    assert!(found[0].contains("d -> a    ") && found[0].contains("d/inner.rs:1"), "{found:?}");
}

#[test]
fn cycles_are_found_below_the_root_and_not_through_tests() {
    let below = [
        (
            "lib.rs",
            "mod top { mod a { use super::b::B; } mod b { use super::c; } mod c { use super::d::{self}; } mod d; }",
        ),
        ("top/d.rs", "use crate::top::a as other;"),
    ];
    assert_eq!(cycles(&below).len(), 1);
    let tested = [
        ("lib.rs", "mod a { use crate::b; } mod b { use crate::c; } mod c { use crate::d; } mod d;"),
        ("d.rs", "#[cfg(test)] mod tests { use crate::a; } #[cfg(test)] fn f() { crate::a::g() }"),
    ];
    assert_eq!(cycles(&tested), [""; 0]);
}

#[test]
fn a_name_that_two_types_share_is_found_unless_it_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("lib.rs");
    fs::write(
        &root,
        "pub struct One; mod a { pub enum One {} pub trait Two {} } mod b { pub type Two = u8; struct One; pub(crate) struct Two; }",
    )
    .unwrap();
    let types: Vec<_> =
        source::read(folder.path(), &root).unwrap().into_iter().flat_map(|module| module.types).collect();
    let names = names::Names::of(&types);
    let found = names.check("# known\nTwo 2: for a reason\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("more than 1 public type(s) named One"), "{found:?}");
    let list = "One 2\nThree 2\nTwo 3: for a reason\n";
    assert_eq!(names.check(list).len(), 2, "the list must not allow more than there is");
    assert_eq!(names.shrunk(list), "One 2\nTwo 2: for a reason\n");
}
