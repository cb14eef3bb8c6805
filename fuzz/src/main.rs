//! The fuzzer: libFuzzer around the target that `SLUICE_FUZZ_TARGET` names. `hack/fuzz` builds and runs it.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzer {
    use std::sync::LazyLock;

    /// Chosen once: the fuzzer calls it millions of times.
    static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
        let name = std::env::var("SLUICE_FUZZ_TARGET").unwrap_or_default();
        let targets = [
            netlink::fuzz::TARGETS,
            plan::fuzz::TARGETS,
            proxy::fuzz::TARGETS,
            settings::fuzz::TARGETS,
            watch::fuzz::TARGETS,
        ]
        .concat();
        match targets.iter().find(|(known, _)| *known == name) {
            Some((_, target)) => *target,
            None => {
                let names: Vec<_> = targets.iter().map(|(known, _)| *known).collect();
                eprintln!("SLUICE_FUZZ_TARGET must be one of: {}", names.join(" "));
                std::process::exit(2);
            }
        }
    });

    libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
}

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("built without the fuzzer: run `make fuzz`");
    std::process::exit(2);
}
