//! What the fuzzer calls: the decoders of manifests, kubeconfigs and the API server's answers. See the crate `fuzz`.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};

use kube::config::Kubeconfig;
use model::event::Event;

use crate::event_decoder::{Emit, EventDecoder, Unusable};
use crate::frames::Frames;
use crate::items::Items;
use crate::kubeconfig;
use crate::manifest::{self, Form};
use crate::resource::Resource;
use crate::wire::Wire;

type Decode = fn(&[u8]);

pub const TARGETS: &[(&str, Decode)] = &[
    ("kubeconfig", decode_kubeconfig),
    ("manifest", decode_manifest),
    ("protobuf-stream", |bytes| decode_stream(Wire::Protobuf, bytes)),
    ("watch-stream", |bytes| decode_stream(Wire::Json, bytes)),
];

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
fn decode_stream(wire: Wire, bytes: &[u8]) {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let chunk = usize::from(choice >> 2) + 1;
    for decode in [watch, list] {
        let whole = decode(wire, resource(choice), &mut std::iter::once(body));
        let in_chunks = decode(wire, resource(choice), &mut body.chunks(chunk));
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

/// The events, the position and the failure.
pub(crate) type Decoded = (Vec<Event>, Option<String>, String);

pub(crate) fn watch(wire: Wire, resource: Resource, chunks: &mut dyn Iterator<Item = &[u8]>) -> Decoded {
    decode(resource, |decoder, emit| {
        let mut frames = Frames::new(wire);
        for chunk in chunks {
            frames.push(chunk);
            while let Some(frame) = frames.next()? {
                decoder.receive(&wire.event(&frame)?, emit)?;
            }
        }
        Ok(())
    })
}

pub(crate) fn list(wire: Wire, resource: Resource, chunks: &mut dyn Iterator<Item = &[u8]>) -> Decoded {
    decode(resource, |decoder, emit| {
        let mut items = Items::new(wire);
        for chunk in chunks {
            items.push(chunk, &mut |item| decoder.apply(item, emit))?;
        }
        decoder.end_list(items.finish()?.resource_version, emit)
    })
}

fn decode(
    resource: Resource,
    body: impl FnOnce(&mut EventDecoder, &Emit<'_>) -> Result<(), Unusable>,
) -> Decoded {
    let mut events = Vec::new();
    let mut collect = |event| events.push(event);
    let emit = RefCell::new(&mut collect as &mut dyn FnMut(Event));
    let mut decoder = EventDecoder::new(resource);
    decoder.begin_list(&emit);
    let failure = body(&mut decoder, &emit).err().map(|error| error.to_string()).unwrap_or_default();
    (events, decoder.position, failure)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_input_in_the_corpus_is_decoded() {
        fuzz::run_corpus(super::TARGETS).unwrap();
    }
}
