//! The worked examples as they lie in `examples/`: objects in `*.yaml`, what must be written for them in `*.restore`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use model::event::Event;

use crate::options::Options;
use testkit::objects;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../plan/tests/iptables/examples"))
}

pub fn read(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

pub fn names(extension: &str) -> BTreeSet<String> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let ours = files.filter(|file| file.extension().is_some_and(|end| end == extension));
    ours.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

pub fn options(example: &str) -> Options {
    let text = read(&format!("{example}.yaml"));
    let (kind, document) = objects::documents(&text).swap_remove(0);
    assert_eq!(kind, "Example");
    serde_saphyr::from_str(document).unwrap()
}

/// What happens when the example's objects are applied.
pub fn events(example: &str) -> Vec<Event> {
    let text = read(&format!("{example}.yaml"));
    let documents = objects::documents(&text);
    let applied = documents.iter().filter_map(|(kind, document)| objects::applied(kind, document));
    let delete = options(example).delete;
    applied.chain(delete.iter().map(|what| objects::deletion(what))).collect()
}
