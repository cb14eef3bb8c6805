//! What the fuzzer calls: the decoders of manifests, kubeconfigs and the API server's answers. See the crate `fuzz`.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};

use kube::config::Kubeconfig;
use model::event::Event;

use crate::event_decoder::EventDecoder;
use crate::items::Items;
use crate::kubeconfig;
use crate::lines::Lines;
use crate::manifest::{self, Form};
use crate::resource::Resource;

type Decode = fn(&[u8]);

pub const TARGETS: &[(&str, Decode)] =
    &[("kubeconfig", decode_kubeconfig), ("manifest", decode_manifest), ("watch-stream", decode_stream)];

fn decode_manifest(bytes: &[u8]) {
    let own = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))];
    for form in [Form::Yaml, Form::Json] {
        if let Ok(content) = manifest::read(bytes, form, &own) {
            for object in content.objects {
                let _ = object.key();
            }
        }
    }
}

/// Stops before anything that acts on the content: a kubeconfig may name a program to run.
fn decode_kubeconfig(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(file) = Kubeconfig::from_yaml(text) else { return };
    for master in [None, Some("127.0.0.1:6443")] {
        if let Ok(Some(chosen)) = kubeconfig::choose(file.clone(), master) {
            let _ = kubeconfig::files(&chosen);
        }
    }
}

/// The first byte chooses the resource and the size of the chunks, the rest is the body of an answer. The events
/// must not depend on where the network splits the body.
fn decode_stream(bytes: &[u8]) {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let chunk = usize::from(choice >> 2) + 1;
    for decode in [watch, list] {
        let whole = decode(resource(choice), &mut std::iter::once(body));
        let in_chunks = decode(resource(choice), &mut body.chunks(chunk));
        assert_eq!(in_chunks, whole, "chunks of {chunk} bytes");
    }
}

fn resource(choice: u8) -> Resource {
    match choice % 4 {
        0 => Resource::Node("node-1".into()),
        1 => Resource::Service,
        2 => Resource::EndpointSlice,
        _ => Resource::ServiceCidr,
    }
}

type Decoded = (Vec<Event>, Option<String>, String);

fn watch(resource: Resource, chunks: &mut dyn Iterator<Item = &[u8]>) -> Decoded {
    let mut events = Vec::new();
    let mut collect = |event| events.push(event);
    let emit = RefCell::new(&mut collect as &mut dyn FnMut(Event));
    let mut decoder = EventDecoder::new(resource);
    let mut lines = Lines::default();
    let mut failure = String::new();
    decoder.begin_list(&emit);
    'body: for chunk in chunks {
        lines.push(chunk);
        while let Ok(Some(line)) = lines.next() {
            if let Err(error) = decoder.receive(&line, &emit) {
                failure = error.to_string();
                break 'body;
            }
        }
    }
    (events, decoder.position, failure)
}

fn list(resource: Resource, chunks: &mut dyn Iterator<Item = &[u8]>) -> Decoded {
    let mut events = Vec::new();
    let mut collect = |event| events.push(event);
    let emit = RefCell::new(&mut collect as &mut dyn FnMut(Event));
    let mut decoder = EventDecoder::new(resource);
    let mut items = Items::default();
    decoder.begin_list(&emit);
    for chunk in chunks {
        items.push(chunk, &mut |item| decoder.apply(item, &emit));
    }
    let ended =
        items.finish().map_err(Into::into).and_then(|meta| decoder.end_list(meta.resource_version, &emit));
    let failure = ended.err().map(|error| error.to_string()).unwrap_or_default();
    (events, decoder.position, failure)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
