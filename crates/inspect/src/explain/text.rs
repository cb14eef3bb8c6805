//! Formats an explanation as text.

use std::fmt::Write as _;

use model::annotations::IgnoredReason;
use model::hashing::{ClientHash, MAX_HASHED};
use plan::explain::live::Live;
use plan::explain::{
    AppliedPolicy, ExplainedFrontend, Explanation, Fate, FrontendKind, HealthCheckAnswer, IgnoredAnnotation,
    Masquerade, Origin, PolicyField, PolicyValue, Reason, Target, UnusedEndpoint, UnusedReason,
};
use plan::iptables::chains::lower_case;
use plan::mode::Mode;

pub fn of(explanation: &Explanation) -> String {
    let Explanation { source, protocol, destination, .. } = explanation;
    let mut out = format!("{source} -> {} {destination}\n", lower_case(*protocol));
    let mut push = |line: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{line}");
    };
    push(&format!("  {}", frontend(explanation)));
    push(&format!("  {}", origin_and_policy(explanation)));
    if let Some(frontend) = &explanation.frontend
        && !frontend.denied_to.is_empty()
    {
        let why = frontend.precedence.map(|precedence| format!(": {precedence}")).unwrap_or_default();
        push(&format!("  also claimed by {}{why}", frontend.denied_to.join(", ")));
    }
    push(&format!("  {}", fate(explanation)));
    let addresses = explanation.endpoints.iter().map(|target| target.address);
    let addresses = addresses.chain(explanation.unused.iter().map(|unused| unused.address));
    let width = addresses.map(|address| address.to_string().len()).max().unwrap_or_default();
    for target in &explanation.endpoints {
        push(&format!("    {}", endpoint(target, width, is_uniform(explanation))));
    }
    match explanation.otherwise {
        Some(Fate::Refused) => {
            push("  connections to other endpoints are refused: their addresses belong to another service")
        }
        Some(_) => push("  connections to other endpoints fail: their addresses belong to another service"),
        None => {}
    }
    if let Some(hash) = explanation.hash {
        push(&format!("  {}", hashed(hash, explanation)));
    }
    if let Some(seconds) = explanation.affinity_seconds {
        push(&format!("  session affinity: {}", time(seconds)));
    }
    if !explanation.unused.is_empty() {
        push("  not used:");
    }
    for unused in &explanation.unused {
        let (address, why) = (unused.address.to_string(), why_unused(unused));
        push(&format!("    {address:<width$}         {why}"));
    }
    for ignored in &explanation.ignored {
        push(&format!("  {}", ignored_annotation(ignored)));
    }
    if !explanation.chains.is_empty() {
        push(&format!("  path: {}", explanation.chains.join(" > ")));
    }
    if let Some(live) = &explanation.live {
        push(&format!("  {}", kernel(live, explanation)));
        if let Some(other) = &live.not_followed {
            push(&format!(
                "  only the rules of this mode were followed, but the kernel also has those of {other}: use the --proxy-mode of the proxy"
            ));
        }
    }
    if explanation.pending {
        push("  a change of the cluster is not in the kernel yet");
    }
    out
}

fn frontend(explanation: &Explanation) -> String {
    let mode = explanation.mode.name();
    if let Some(HealthCheckAnswer { namespace, service, .. }) = &explanation.health_check {
        return format!("health-check node port of {namespace}/{service} ({mode} mode)");
    }
    let Some(ExplainedFrontend { kind, namespace, service, port, .. }) = &explanation.frontend else {
        let what = match explanation.reason {
            Some(Reason::NoSuchPort) => "unused port of a cluster IP",
            Some(Reason::UnusedClusterIp) => "unused cluster IP",
            _ => "not a service address",
        };
        return format!("{what} ({mode} mode)");
    };
    let kind = match kind {
        FrontendKind::ClusterIp => "cluster IP",
        FrontendKind::ExternalIp => "external IP",
        FrontendKind::LoadBalancerIp => "load-balancer IP",
        FrontendKind::NodePort => "node port",
    };
    let port = if port.is_empty() { String::new() } else { format!(":{port}") };
    format!("{kind} of {namespace}/{service}{port} ({mode} mode)")
}

fn origin_and_policy(explanation: &Explanation) -> String {
    let origin = match explanation.origin {
        Origin::Node => "from this node itself",
        Origin::Pod => "from a pod",
        Origin::Elsewhere => "from outside the cluster",
        Origin::Unknown => "not from this node; the proxy cannot tell whether from a pod",
    };
    let Some(AppliedPolicy { field, value, short_circuit }) = explanation.policy else {
        return origin.into();
    };
    let field = match field {
        PolicyField::InternalTrafficPolicy => "internalTrafficPolicy",
        PolicyField::ExternalTrafficPolicy => "externalTrafficPolicy",
    };
    let value = match value {
        PolicyValue::Cluster => "Cluster",
        PolicyValue::Local => "Local",
    };
    let but = if short_circuit { ", which does not apply to pods and this node" } else { "" };
    format!("{origin}; {field} {value}{but}")
}

fn fate(explanation: &Explanation) -> String {
    let why = explanation
        .reason
        .map(|reason| format!(": {}", reason_text(reason, explanation)))
        .unwrap_or_default();
    match explanation.fate {
        Fate::Forwarded => {
            let sees = match explanation.endpoints.first() {
                Some(target) if is_uniform(explanation) => format!(", which {}", sees(target.masquerade)),
                _ => String::new(),
            };
            match explanation.endpoints.len() {
                1 if explanation.hash.is_some() => format!("goes to this endpoint{sees}:"),
                1 => format!("goes to the only endpoint{sees}:"),
                count => format!("goes to one of {count} endpoints{sees}:"),
            }
        }
        Fate::Refused => format!("refused at once{why}"),
        Fate::Dropped => format!("dropped: the client times out{why}"),
        Fate::Untouched if explanation.to_this_node => {
            format!("not handled by the rules, delivered to the node itself{why}")
        }
        Fate::Untouched => format!("not handled by the rules, routed as usual{why}"),
    }
}

/// Whether all endpoints see the same source address.
fn is_uniform(explanation: &Explanation) -> bool {
    let mut seen = explanation.endpoints.iter().map(|target| target.masquerade);
    let first = seen.next();
    seen.all(|next| Some(next) == first)
}

fn reason_text(reason: Reason, explanation: &Explanation) -> String {
    if let Some(check) = &explanation.health_check {
        return health_check(check);
    }
    let text = match reason {
        Reason::NoEndpoints => "no usable endpoint exists",
        Reason::NoLocalEndpoints => "the policy requires an endpoint on this node, and there is none",
        Reason::NotInSourceRanges => "loadBalancerSourceRanges do not admit the source",
        Reason::NoSuchPort if explanation.mode == Mode::Ipvs => {
            "the service at this address has no such port"
        }
        Reason::NoSuchPort => "the service at this cluster IP has no such port",
        Reason::UnusedClusterIp => "it belongs to a service CIDR, and no service uses it",
        Reason::NodePortNotServedHere if explanation.destination.ip().is_loopback() => match explanation.mode
        {
            Mode::Nftables | Mode::Ipvs => "node ports are never served at loopback in this mode",
            Mode::Iptables => {
                "node ports are not served at loopback (--iptables-localhost-nodeports, --nodeport-addresses; IPv4 only)"
            }
        },
        Reason::NodePortNotServedHere => "node ports are not served at this address (--nodeport-addresses)",
        Reason::UncheckedFromNode => {
            "there is no usable endpoint, but this mode does not refuse connections from this node to external addresses"
        }
        Reason::LoopbackOnly => "node ports are served at loopback, which accepts only loopback sources",
        Reason::HealthCheck => "the proxy itself answers there",
        Reason::NoService => "no service uses this address and port",
    };
    text.into()
}

fn health_check(check: &HealthCheckAnswer) -> String {
    if let Some(trouble) = &check.trouble {
        return format!("the proxy itself should answer there, but cannot: {trouble}");
    }
    let why = match check.local_endpoints {
        _ if !check.proxy_is_healthy => "it is not healthy, a sync is overdue".into(),
        0 => "the service has no ready endpoint on this node".into(),
        1 => "the service has 1 ready endpoint on this node".into(),
        count => format!("the service has {count} ready endpoints on this node"),
    };
    format!("the proxy itself answers there, with {}: {why}", check.status)
}

fn sees(why: Option<Masquerade>) -> String {
    match why {
        Some(why) => format!("sees this node's address ({})", masquerade(why)),
        None => "sees the client's own address".into(),
    }
}

fn masquerade(why: Masquerade) -> &'static str {
    match why {
        Masquerade::All => "masqueradeAll",
        Masquerade::NotFromPod => "cluster IP, and not from a pod",
        Masquerade::External => "external traffic, policy Cluster",
        Masquerade::FromNode => "external traffic, from this node",
        Masquerade::Hairpin => "back to the pod it comes from",
    }
}

fn endpoint(target: &Target, width: usize, is_uniform: bool) -> String {
    let address = target.address.to_string();
    let chance = percent(target.probability);
    let weight = target.weight.map(|weight| format!(", weight {weight}")).unwrap_or_default();
    let place = if target.on_this_node { "this node" } else { "another node" };
    let sees = if is_uniform { String::new() } else { format!("; {}", sees(target.masquerade)) };
    format!("{address:<width$}  {chance:>5}  {place}{weight}{sees}")
}

/// `50%`, `33.3%`
fn percent(probability: f64) -> String {
    let percent = probability * 100.0;
    if (percent - percent.round()).abs() < 0.05 { format!("{percent:.0}%") } else { format!("{percent:.1}%") }
}

fn why_unused(unused: &UnusedEndpoint) -> String {
    match unused.reason {
        UnusedReason::NotReady => "not ready".into(),
        UnusedReason::Draining => "terminating, while others are ready".into(),
        UnusedReason::WithoutWeight => "weight 0, while others are ready".into(),
        UnusedReason::Gone => "terminating, no longer serving".into(),
        UnusedReason::OnAnotherNode => "not on this node".into(),
        UnusedReason::ForOtherNodes => "for other nodes (hints)".into(),
        UnusedReason::ForOtherZones => format!("for other zones (hints: {})", unused.zones.join(", ")),
    }
}

fn hashed(hash: ClientHash, explanation: &Explanation) -> String {
    let what = match hash {
        ClientHash::Address => "the client's address",
        ClientHash::AddressAndPort => "the client's address and port",
    };
    let unknown = match (explanation.mode, hash, explanation.source_port) {
        (Mode::Ipvs, ..) => "; only IPVS knows which endpoint that is",
        (_, ClientHash::AddressAndPort, None) => {
            "; give the port with --from IP:PORT to see which endpoint that is"
        }
        _ => "",
    };
    format!("chosen by a hash of {what}{unknown}")
}

fn ignored_annotation(ignored: &IgnoredAnnotation) -> String {
    let IgnoredAnnotation { slice, annotation, value, reason } = ignored;
    let of = slice.as_ref().map_or("the service".into(), |slice| format!("endpoint slice {slice}"));
    let why = match reason {
        IgnoredReason::Invalid => "it is invalid".into(),
        IgnoredReason::Unsupported => "this mode or kernel can't hash clients".into(),
        IgnoredReason::OverLimit => {
            format!("no more than {MAX_HASHED} service ports have their clients hashed, and older ones do")
        }
    };
    format!("annotation {annotation} {value:?} of {of} is ignored: {why}")
}

fn kernel(live: &Live, explanation: &Explanation) -> String {
    if live.agrees {
        return "the kernel agrees".into();
    }
    let endpoints: Vec<String> = live.endpoints.iter().map(ToString::to_string).collect();
    let does = match live.fate {
        Fate::Forwarded if live.may_miss => {
            format!("forwards to {}, and at random to no endpoint", endpoints.join(", "))
        }
        Fate::Forwarded => {
            // If the endpoints differ, the source address that they see does not matter.
            let same_endpoints = explanation.endpoints.iter().all(|it| live.endpoints.contains(&it.address))
                && explanation.endpoints.len() == live.endpoints.len();
            let masqueraded: Vec<String> = live.masqueraded.iter().map(ToString::to_string).collect();
            let seen = match masqueraded.len() {
                _ if !same_endpoints => String::new(),
                0 => ", without masquerading".into(),
                _ => format!(", masqueraded for {}", masqueraded.join(", ")),
            };
            format!("forwards to {}{seen}", endpoints.join(", "))
        }
        Fate::Refused => "refuses it".into(),
        Fate::Dropped => "drops it".into(),
        Fate::Untouched => "does not handle it".into(),
    };
    let foreign: String = live.not_understood.iter().map(|rule| format!("; foreign rule: {rule}")).collect();
    format!("the kernel DISAGREES: it {does}{foreign}")
}

/// `3h`, `1h30m`, `1m30s`
fn time(seconds: u32) -> String {
    let parts = [(seconds / 3_600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect()
}

#[cfg(test)]
mod tests {
    use model::hashing::HASH_ANNOTATION;
    use model::weights::WEIGHT_ANNOTATION;

    use super::*;

    #[test]
    fn an_annotation_that_is_ignored_is_shown_with_the_reason() {
        for (slice, annotation, value, reason, text) in [
            (
                Some("web-1"),
                WEIGHT_ANNOTATION,
                "heavy",
                IgnoredReason::Invalid,
                r#"annotation service.sluice.io/weight "heavy" of endpoint slice web-1 is ignored: it is invalid"#,
            ),
            (
                None,
                HASH_ANNOTATION,
                "client",
                IgnoredReason::Invalid,
                r#"annotation service.sluice.io/hash "client" of the service is ignored: it is invalid"#,
            ),
            (
                None,
                HASH_ANNOTATION,
                "ClientIP",
                IgnoredReason::Unsupported,
                r#"annotation service.sluice.io/hash "ClientIP" of the service is ignored: this mode or kernel can't hash clients"#,
            ),
            (
                None,
                HASH_ANNOTATION,
                "ClientIP",
                IgnoredReason::OverLimit,
                r#"annotation service.sluice.io/hash "ClientIP" of the service is ignored: no more than 32 service ports have their clients hashed, and older ones do"#,
            ),
        ] {
            let (slice, annotation, value) = (slice.map(str::to_owned), annotation.into(), value.into());
            assert_eq!(ignored_annotation(&IgnoredAnnotation { slice, annotation, value, reason }), text);
        }
    }
}
