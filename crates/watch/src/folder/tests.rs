use std::os::unix::fs::symlink;

use super::*;

#[test]
fn every_link_of_a_path_is_watched() {
    let dir = tempfile::TempDir::new().unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("store/..1")).unwrap();
    fs::write(root.join("store/..1/a.yaml"), "").unwrap();
    symlink("..1", root.join("store/..data")).unwrap();
    symlink("..data/a.yaml", root.join("store/a.yaml")).unwrap();
    symlink(root.join("store"), root.join("current")).unwrap();

    let show = |path: &str| -> Vec<String> {
        let found = places(&root.join(path));
        found
            .iter()
            .map(|(dir, name)| dir.join(name).strip_prefix(&root).unwrap().display().to_string())
            .collect()
    };
    assert_eq!(show("store"), ["store"]);
    assert_eq!(show("current"), ["current", "store"]);
    assert_eq!(show("current/a.yaml"), ["current", "store/a.yaml", "store/..data", "store/..1/a.yaml"]);
    assert_eq!(show("current/../store/a.yaml").last().unwrap(), "store/..1/a.yaml");
    assert_eq!(show("nowhere/a.yaml"), ["nowhere"], "where it would first show");
}

#[test]
fn cyclic_links_are_limited() {
    let dir = tempfile::TempDir::new().unwrap();
    symlink("b", dir.path().join("a")).unwrap();
    symlink("a", dir.path().join("b")).unwrap();
    assert!(places(&dir.path().join("a/x.yaml")).len() <= 41);
}

#[test]
fn without_changes_none_are_reported() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut folder = Folder::open(dir.path(), &["yaml"]).unwrap();
    assert_eq!(folder.wait(Some(Duration::from_millis(1))).unwrap(), Changed::default());
    assert_eq!(folder.files().unwrap(), [""; 0]);
}

#[test]
fn a_folder_that_does_not_exist_cannot_be_listed() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut folder = Folder::open(&dir.path().join("later"), &["yaml"]).unwrap();
    assert_eq!(folder.files().unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::create_dir(dir.path().join("later")).unwrap();
    assert!(folder.wait(Some(Duration::from_secs(10))).unwrap().everything);
}
